// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_STAGED_FILE_H_
#define QKV_COMMANDS_SHELL_STAGED_FILE_H_

#include <functional>
#include <string>

// Whether two paths lead, possibly through links, to one regular file, or to one place where no
// file exists yet. "-" is standard input.
bool is_same_file(const std::string& a, const std::string& b);

// Checks an output path before anything is written. Throws OutputError if its directory is missing,
// not a directory or not writable, or if the path exists and is not a regular file.
void check_place(const std::string& path);

// A file that the constructor writes to a temporary directory next to the target, and that commit()
// renames into place. Several files appear together if all are written before the first is
// committed. The destructor removes a file that was not committed.
class StagedFile {
 public:
  // Calls `write` with the temporary file's path. Throws OutputError, whose message names `path`.
  StagedFile(const std::string& path, const std::function<void(const std::string&)>& write);
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  void commit();

 private:
  std::string path_;       // the target as the caller and messages name it
  std::string target_;     // the target with symbolic links resolved
  std::string directory_;  // the temporary directory; "" once it is removed
  std::string waiting_;    // the temporary file in the directory
};

#endif  // QKV_COMMANDS_SHELL_STAGED_FILE_H_
