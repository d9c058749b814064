// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/staged_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <qkv/app/file_error.h>

#include "files/text_file.h"

namespace {

std::string system_message(int error) { return std::generic_category().message(error); }

bool status_of(const std::string& path, struct stat& status) {
  return (path == "-" ? ::fstat(STDIN_FILENO, &status) : ::stat(path.c_str(), &status)) == 0;
}

std::string directory_of(const std::string& target) {
  const std::string parent = std::filesystem::path(target).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Makes a rename in this directory survive a crash, if the file system supports that.
void synchronise(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// The reason in an error's message, without the name of the temporary file, which means nothing to
// the user.
std::string reason_of(const qkv::app::OutputError& error) {
  constexpr std::string_view kMark = ": cannot be written: ";
  const std::string text = error.what();
  const auto place = text.rfind(kMark);
  return place == std::string::npos ? text : text.substr(place + kMark.size());
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  struct stat one {};
  struct stat other {};
  const bool is_there = status_of(a, one);
  if (is_there != status_of(b, other)) return false;
  if (is_there) {
    return S_ISREG(one.st_mode) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  }
  // Neither file exists: compare where each would be created. A link may point to a missing file.
  std::error_code error;
  const auto place = [&](const std::string& path) {
    const std::filesystem::path target = qkv::app::behind_links(path);
    return std::filesystem::weakly_canonical(std::filesystem::absolute(target, error), error);
  };
  return place(a) == place(b);
}

void check_place(const std::string& path) {
  const std::string target = qkv::app::behind_links(path);
  struct stat status {};
  if (::stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw qkv::app::OutputError(path, "it is not a regular file");
  }
  // The directory's type is checked first: access() would report a file as lacking permissions.
  const std::string directory = directory_of(target);
  if (::stat(directory.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    throw qkv::app::OutputError(path, directory + " is not a directory");
  }
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    throw qkv::app::OutputError(path, system_message(errno));
  }
}

StagedFile::StagedFile(const std::string& path,
                       const std::function<void(const std::string&)>& write)
    : path_(path), target_(qkv::app::behind_links(path)) {
  check_place(path);  // the place may have changed since the command line was checked
  std::string pattern = directory_of(target_) + "/.qkv-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw qkv::app::OutputError(path_, system_message(errno));
  }
  directory_ = pattern;
  waiting_ = directory_ + "/file";
  try {
    write(waiting_);
  } catch (const qkv::app::OutputError& error) {
    ::rmdir(directory_.c_str());
    throw qkv::app::OutputError(path_, reason_of(error));
  } catch (...) {
    ::rmdir(directory_.c_str());
    throw;
  }
  // A replaced file keeps its permissions if the file system allows it.
  struct stat old {};
  if (::stat(target_.c_str(), &old) == 0) ::chmod(waiting_.c_str(), old.st_mode & 07777U);
}

StagedFile::~StagedFile() {
  if (directory_.empty()) return;
  ::unlink(waiting_.c_str());
  ::rmdir(directory_.c_str());
}

void StagedFile::commit() {
  if (::rename(waiting_.c_str(), target_.c_str()) != 0) {
    throw qkv::app::OutputError(path_, system_message(errno));
  }
  ::rmdir(directory_.c_str());
  directory_.clear();
  synchronise(directory_of(target_));
}
