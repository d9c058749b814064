// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_STAGED_FILE_H_
#define QKV_TOOLS_SHELL_STAGED_FILE_H_

#include <functional>
#include <string>

// Whether two paths name one file, be it by links or by spelling. "-" is standard input.
bool is_same_file(const std::string& a, const std::string& b);

// What can be known of an output before its bytes are: throws OutputError where the directory is
// missing or not writable, or something else but a regular file stands there.
void check_place(const std::string& path);

// A file that waits in a directory of its own beside its place, so that several appear together:
// each is written, then each is committed. What was not committed is removed.
class StagedFile {
 public:
  // Calls `write` with the path to write to. Throws OutputError, which names `path`.
  StagedFile(const std::string& path, const std::function<void(const std::string&)>& write);
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  void commit();

 private:
  std::string path_;       // as messages name it
  std::string target_;     // behind symbolic links
  std::string directory_;  // "": removed
  std::string waiting_;    // in the directory
};

#endif  // QKV_TOOLS_SHELL_STAGED_FILE_H_
