// SPDX-License-Identifier: Apache-2.0
#include "files/locked_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/descriptor.h"
#include "files/file.h"

namespace qkv::app {
namespace {

namespace fs = std::filesystem;

// Whether `file` is a temporary name that OutputFile gives to the file `name`: "NAME.4711-3.tmp".
bool is_leftover(std::string_view file, std::string_view name) {
  constexpr std::string_view kEnd = ".tmp";
  if (!file.starts_with(name) || !file.ends_with(kEnd)) return false;
  if (file.size() <= name.size() + kEnd.size() || file[name.size()] != '.') return false;
  file.remove_prefix(name.size() + 1);
  file.remove_suffix(kEnd.size());
  const auto dash = file.find('-');
  return dash != file.npos && dash > 0 && dash + 1 < file.size() &&
         std::ranges::count(file, '-') == 1 &&
         std::ranges::all_of(file, [](char c) { return c == '-' || (c >= '0' && c <= '9'); });
}

}  // namespace

struct LockedFolder::Lock {
  files::Descriptor folder;
};

LockedFolder::LockedFolder(std::string path) : path_(std::move(path)) {
  is_created_ = ::mkdir(path_.c_str(), 0777) == 0;
  if (!is_created_ && errno != EEXIST) throw OutputError(path_, files::system_message(errno));
  lock_ = std::make_unique<Lock>(
      Lock{files::Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))});
  if (lock_->folder.get() < 0) throw OutputError(path_, files::system_message(errno));
  // A file system without locks is no error.
  if (::flock(lock_->folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw OutputError(path_, "another process writes to it");
  }
}

LockedFolder::~LockedFolder() {
  if (is_created_) ::rmdir(path_.c_str());  // fails, as intended, unless it is empty
}

namespace {

// The type of the entry itself, not of a link's target.
fs::file_type type_of(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none) throw OutputError(path, error.message());
  return status.type();
}

// The sorted names of a folder's entries.
std::vector<std::string> list(const std::string& folder, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string LockedFolder::file(std::string_view name) const {
  std::string path = fs::path(path_) / name;
  if (type_of(path) == fs::file_type::symlink) {
    throw OutputError(path, "it is a symbolic link, which may lead out of the folder");
  }
  return path;
}

bool LockedFolder::holds(std::string_view name) const {
  return type_of(fs::path(path_) / name) != fs::file_type::not_found;
}

std::vector<std::string> LockedFolder::names() const {
  std::error_code error;
  std::vector<std::string> names = list(path_, error);
  if (error) throw OutputError(path_, error.message());
  return names;
}

void LockedFolder::remove_leftovers(std::string_view name) const {
  for (const std::string& file_name : names()) {
    if (is_leftover(file_name, name)) ::unlink((fs::path(path_) / file_name).c_str());
  }
}

void LockedFolder::remove(std::string_view name) const {
  const std::string path = file(name);
  std::error_code error;
  fs::remove(path, error);
  if (error) throw OutputError(path, error.message());
}

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names = list(folder, error);
  if (error) throw InputError(folder, error.message());
  return names;
}

}  // namespace qkv::app
