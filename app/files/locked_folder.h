// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_LOCKED_FOLDER_H_
#define QKV_FILES_LOCKED_FOLDER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>

namespace qkv::app {

// The names of all entries of a folder that others may be writing to, sorted. Throws InputError.
std::vector<std::string> names_in(const std::string& folder);

// A folder locked for writing by one process: it is created if missing, and nobody else
// can lock it during the object's lifetime (the lock ends with the process, however that ends). A
// folder that was created and is still empty at the end is removed. Throws OutputError if the
// folder cannot be created, or another process holds it.
class LockedFolder {
 public:
  explicit LockedFolder(std::string path);
  ~LockedFolder();
  LockedFolder(const LockedFolder&) = delete;
  LockedFolder& operator=(const LockedFolder&) = delete;

  const std::string& path() const noexcept { return path_; }
  // The path of a file in it. Throws OutputError for a symbolic link of that name: a folder
  // from an untrusted source must not redirect writes elsewhere.
  std::string file(std::string_view name) const;
  // Whether an entry of that name exists, even a dangling link. Throws OutputError if that
  // cannot be determined.
  bool holds(std::string_view name) const;
  // The names of all entries, sorted.
  std::vector<std::string> names() const;
  // Removes the temporary files of this file that a killed process left behind, by OutputFile's
  // naming scheme ("model.safetensors.4711-3.tmp").
  void remove_leftovers(std::string_view name) const;
  // Removes a file of it, if there is one. Throws OutputError if that fails.
  void remove(std::string_view name) const;

 private:
  struct Lock;

  std::string path_;
  bool made_ = false;
  std::unique_ptr<Lock> lock_;
};

}  // namespace qkv::app

#endif  // QKV_FILES_LOCKED_FOLDER_H_
