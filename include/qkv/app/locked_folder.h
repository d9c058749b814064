// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_LOCKED_FOLDER_H_
#define QKV_APP_LOCKED_FOLDER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// A folder that one process at a time writes to: it is made when it is not there, and nobody else
// gets it while the object lives (the lock ends with the process, however that ends). One that was
// made and is still empty in the end is removed again. Throws OutputError for a place where there
// can be no folder, and for a folder that another process has.
class QKV_API LockedFolder {
 public:
  explicit LockedFolder(std::string path);
  ~LockedFolder();
  LockedFolder(const LockedFolder&) = delete;
  LockedFolder& operator=(const LockedFolder&) = delete;

  const std::string& path() const noexcept { return path_; }
  // Of a file in it. Throws OutputError for a symbolic link of that name: who writes to a folder
  // that came from elsewhere shall not write beside it.
  std::string file(std::string_view name) const;
  // Whether something of that name is there, a link to nowhere too. Throws OutputError where that
  // cannot be found out.
  bool holds(std::string_view name) const;
  // The names of all that is in it, sorted.
  std::vector<std::string> names() const;
  // Removes what writing one of these files left behind when the process was killed: files called
  // as OutputFile calls those that are not whole yet ("model.safetensors.4711-3.tmp").
  void remove_leftovers(std::string_view name) const;

 private:
  struct Lock;

  std::string path_;
  bool made_ = false;
  std::unique_ptr<Lock> lock_;
};

}  // namespace qkv::app

#endif  // QKV_APP_LOCKED_FOLDER_H_
