// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_STAGED_FILE_H_
#define QKV_COMMANDS_SHELL_STAGED_FILE_H_

#include <functional>
#include <string>

// Whether two paths name the same file, through links or different spellings. "-" is standard
// input.
bool is_same_file(const std::string& a, const std::string& b);

// Checks an output path before there is any output: throws OutputError if the directory is
// missing, not a directory or not writable, or the path exists and is not a regular file.
void check_place(const std::string& path);

// A file staged in a directory of its own next to its target, so that several appear together:
// each is written, then each is committed. Uncommitted files are removed.
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
  std::string target_;     // symbolic links resolved
  std::string directory_;  // "": removed
  std::string waiting_;    // in the directory
};

#endif  // QKV_COMMANDS_SHELL_STAGED_FILE_H_
