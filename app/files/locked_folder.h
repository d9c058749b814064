// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_LOCKED_FOLDER_H_
#define QKV_FILES_LOCKED_FOLDER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>

namespace qkv::app {

// The sorted names of all entries of a folder; other processes may be writing to it. Throws
// InputError.
std::vector<std::string> names_in(const std::string& folder);

// A folder that one process has locked for writing. The constructor creates it if it is missing,
// and no other process can lock it during the object's lifetime (the lock ends with the process,
// however that ends). The destructor removes the folder if it is empty and the constructor created
// it. Throws OutputError if the folder cannot be created, or another process holds it.
class LockedFolder {
 public:
  explicit LockedFolder(std::string path);
  ~LockedFolder();
  LockedFolder(const LockedFolder&) = delete;
  LockedFolder& operator=(const LockedFolder&) = delete;

  const std::string& path() const noexcept { return path_; }
  // The path of the folder's file `name`. Throws OutputError for a symbolic link of that name: a
  // folder from an untrusted source must not redirect writes elsewhere.
  std::string file(std::string_view name) const;
  // Whether an entry of that name exists, even a dangling link. Throws OutputError if that
  // cannot be determined.
  bool holds(std::string_view name) const;
  // The names of all entries, sorted.
  std::vector<std::string> names() const;
  // Removes the temporary files that a killed process left behind when writing the file `name`.
  // They are recognised by OutputFile's naming scheme ("model.safetensors.4711-3.tmp").
  void remove_leftovers(std::string_view name) const;
  // Removes the file `name` if it exists. Throws OutputError if that fails.
  void remove(std::string_view name) const;

 private:
  struct Lock;

  std::string path_;
  bool is_created_ = false;  // whether the constructor created the folder
  std::unique_ptr<Lock> lock_;
};

}  // namespace qkv::app

#endif  // QKV_FILES_LOCKED_FOLDER_H_
