// SPDX-License-Identifier: Apache-2.0
#include "files/file.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <qkv/app/file_error.h>
#include <qkv/error.h>

#include "files/text_file.h"

namespace qkv::files {
namespace {

// The most bytes of one read or write; some systems reject more.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;
// The permission bits that a new file takes from the file it replaces: all but set-user-ID,
// set-group-ID and the sticky bit.
constexpr mode_t kPermissions = S_IRWXU | S_IRWXG | S_IRWXO;
constexpr std::size_t kBlock = std::size_t{1} << 20;

bool is_set(const std::atomic<bool>* stop) {
  return stop != nullptr && stop->load(std::memory_order_relaxed);
}

// Waits until a read would not block. The flag is polled ten times a second: a signal that sets it
// may be delivered to another thread, and then poll() here is not interrupted.
void wait_to_read(const Descriptor& file, const std::atomic<bool>* stop) {
  constexpr int kMilliseconds = 100;
  struct pollfd input {};
  input.fd = file.get();
  input.events = POLLIN;
  for (;;) {
    if (is_set(stop)) throw Cancelled("read");
    const int ready = ::poll(&input, 1, kMilliseconds);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return;  // a read reports an error
  }
}

// Opens a FIFO and waits until a writer has written to it or closed it. Without O_NONBLOCK, open()
// itself would wait and not poll the flag.
Descriptor open_fifo(const std::string& path, const std::atomic<bool>* stop) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return file;
  wait_to_read(file, stop);
  ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}

// Opens a file for reading. Opening a FIFO waits for a writer; if there is a flag, setting it ends
// the wait, and Cancelled is thrown.
Descriptor open_to_read(const std::string& path, const std::atomic<bool>* stop) {
  if (path == "-") return Descriptor(::dup(STDIN_FILENO));
  struct stat status {};
  const bool is_fifo = ::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
  if (is_fifo && stop != nullptr) return open_fifo(path, stop);
  for (;;) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0 || errno != EINTR) return Descriptor(fd);
    if (is_set(stop)) throw Cancelled("read");
  }
}

// Whether `error` says that a non-blocking descriptor has no data, or no room, yet.
bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Waits until a transfer is possible, or a signal arrives.
void wait_for(const Descriptor& file, short event) {
  struct pollfd waiting {
    file.get(), event, 0
  };
  ::poll(&waiting, 1, -1);
}

// Returns the path of a temporary file in the target's folder that no other call, thread or live
// process uses; a killed process may have left a file of this name. The name is the target's plus a
// suffix; the target's is cut short if the system's limit on names requires it.
std::string beside(const std::string& target) {
  static std::atomic<unsigned> count{0};
  const std::string suffix = fmt::format(".{}-{}.tmp", ::getpid(), count.fetch_add(1));
  const std::size_t name = target.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t most = name + NAME_MAX - suffix.size();
  return target.substr(0, std::min(target.size(), most)) + suffix;
}

// Makes the rename of a file durable. A file system that cannot do so is no error: the file exists.
void synchronise_directory(const std::string& file) {
  const std::string parent = std::filesystem::path(file).parent_path().string();
  const Descriptor directory(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
}

}  // namespace

std::string system_message(int error) { return std::generic_category().message(error); }

int Descriptor::close() noexcept {
  const int fd = std::exchange(fd_, -1);
  return fd < 0 || ::close(fd) == 0 ? 0 : errno;
}

InputFile::InputFile(const std::string& path, const std::atomic<bool>* stop)
    : name_(path == "-" ? "<stdin>" : path), file_(open_to_read(path, stop)), stop_(stop) {
  if (file_.get() < 0) throw app::InputError(name_, system_message(errno));
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw app::InputError(name_, system_message(errno));
  if (S_ISDIR(status.st_mode)) throw app::InputError(name_, "expected a file, got a directory");
  may_wait_ = stop != nullptr && !S_ISREG(status.st_mode);
  // Standard input may be a file that has been partly read: its size then counts as unknown.
  if (S_ISREG(status.st_mode) && ::lseek(file_.get(), 0, SEEK_CUR) == 0) size_ = status.st_size;
}

std::string_view InputFile::peek(std::size_t bytes) {
  ahead_.erase(0, std::exchange(given_, 0));
  // Reads in steps, so that memory grows with the bytes that arrive, not with the requested size.
  while (ahead_.size() < bytes) {
    const std::size_t before = ahead_.size();
    const std::size_t step = std::min(bytes - before, std::max(kBlock, before));
    ahead_.resize(before + step);
    ahead_.resize(before + read_on(ahead_.data() + before, step, Wait::kForAll));
    if (ahead_.size() < before + step) break;
  }
  return std::string_view(ahead_).substr(0, bytes);
}

int InputFile::duplicate() const {
  const int copy = ::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw app::InputError(name_, system_message(errno));
  return copy;
}

std::size_t InputFile::read(void* target, std::size_t bytes) {
  const std::size_t known = take_ahead(target, bytes);
  return known + read_on(static_cast<char*>(target) + known, bytes - known, Wait::kForAll);
}

std::size_t InputFile::read_some(void* target, std::size_t bytes) {
  const std::size_t known = take_ahead(target, bytes);
  return known > 0 ? known : read_on(static_cast<char*>(target), bytes, Wait::kForAny);
}

std::size_t InputFile::take_ahead(void* target, std::size_t bytes) {
  const std::size_t known = ahead_.copy(static_cast<char*>(target), bytes, given_);
  given_ += known;
  if (given_ == ahead_.size()) {
    given_ = 0;
    ahead_ = {};
  }
  return known;
}

// Reads `bytes` bytes from the operating system, or those that are available if `wait` is kForAny.
std::size_t InputFile::read_on(char* target, std::size_t bytes, Wait wait) {
  std::size_t done = 0;
  while (done < bytes) {
    if (is_set(stop_)) throw Cancelled("read");
    if (may_wait_) wait_to_read(file_, stop_);
    const ssize_t got =
        ::read(file_.get(), target + done, std::min(bytes - done, kLargestTransfer));
    if (got == 0) break;
    if (got > 0) done += static_cast<std::size_t>(got);
    if (got < 0 && would_block(errno)) {
      wait_for(file_, POLLIN);
    } else if (got < 0 && errno != EINTR) {
      throw app::InputError(name_, system_message(errno));
    }
    if (got > 0 && wait == Wait::kForAny) break;
  }
  return done;
}

void InputFile::check_stop() const {
  if (is_set(stop_)) throw Cancelled("read");
}

std::string InputFile::read_rest() {
  std::string bytes;
  std::size_t got = 0;
  do {
    const std::size_t before = bytes.size();
    bytes.resize(before + kBlock);
    got = read(bytes.data() + before, kBlock);
    bytes.resize(before + got);
  } while (got == kBlock);
  return bytes;
}

OutputFile::OutputFile(const std::string& path) : name_(path == "-" ? "<stdout>" : path) {
  if (path == "-") {
    create_for_stdout();
  } else {
    create(app::behind_links(path));
  }
}

void OutputFile::create(const std::string& target) {
  if (target.empty()) throw app::OutputError("\"\"", "its name is empty");
  target_ = target;
  // The system would end the name at the zero byte and use another file.
  if (target_.find('\0') != std::string::npos) {
    throw app::OutputError(name_, "its name holds a zero byte");
  }
  struct stat status {};
  mode_t mode = 0666;  // of a new file; the system applies the umask
  if (::stat(target_.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) throw app::OutputError(name_, "it is not a regular file");
    old_mode_ = status.st_mode & kPermissions;
    mode = *old_mode_ | S_IRUSR | S_IWUSR;  // the owner can write; no one else gains rights
  }
  int fd = -1;
  do {  // O_EXCL rejects existing files and links
    temporary_ = beside(target_);
    fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EEXIST);
  if (fd < 0) fail(errno);
  file_ = Descriptor(fd);
}

// Creates a private file in the system's temporary directory (TMPDIR is not used).
void OutputFile::create_for_stdout() {
  std::string pattern = P_tmpdir "/qkv-XXXXXX";
  const int fd = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (fd < 0) throw app::OutputError(pattern, system_message(errno));
  file_ = Descriptor(fd);
  temporary_ = pattern;
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* data, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t put = ::write(file_.get(), static_cast<const char*>(data) + done,
                                std::min(bytes - done, kLargestTransfer));
    if (put >= 0) done += static_cast<std::size_t>(put);
    if (put < 0 && would_block(errno)) {
      wait_for(file_, POLLOUT);
    } else if (put < 0 && errno != EINTR) {
      fail(errno);
    }
  }
}

void OutputFile::commit() {
  if (const int error = file_.close()) fail(error);
  // The file is reopened by name: a library that wrote to temporary_path() may have replaced it.
  const Descriptor written(::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC));
  if (written.get() < 0) fail(errno);
  if (target_.empty()) return copy_to_stdout(written);
  // The umask may have removed permission bits. A failure is ignored, since some file systems have
  // no permissions.
  if (old_mode_) static_cast<void>(::fchmod(written.get(), *old_mode_));
  if (::fsync(written.get()) != 0) fail(errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
  synchronise_directory(target_);
}

void OutputFile::copy_to_stdout(const Descriptor& written) {
  ::unlink(std::exchange(temporary_, "").c_str());
  file_ = Descriptor(::dup(STDOUT_FILENO));
  if (file_.get() < 0) fail(errno);
  std::vector<char> block(std::size_t{1} << 16);
  while (true) {
    const ssize_t got = ::read(written.get(), block.data(), block.size());
    if (got == 0) break;
    if (got < 0 && errno != EINTR) fail(errno);
    if (got > 0) write(block.data(), static_cast<std::size_t>(got));
  }
  if (const int error = file_.close()) fail(error);
}

void OutputFile::fail(int error) const {
  if (error == EPIPE) throw app::OutputError::closed_pipe(name_);
  throw app::OutputError(name_, system_message(error));
}

}  // namespace qkv::files

namespace qkv::app {

std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::filesystem::path place = path;
  std::error_code error;
  for (int link = 0; link <= kMostLinks; ++link) {
    if (!std::filesystem::is_symlink(place, error)) return place.string();
    place = place.parent_path() / std::filesystem::read_symlink(place, error);
  }
  throw OutputError(path, files::system_message(ELOOP));
}

std::string read_text(const std::string& path, const std::atomic<bool>* stop) {
  return files::InputFile(path, stop).read_rest();
}

void for_each_block(const std::string& path, const std::function<void(std::string_view)>& take,
                    const std::atomic<bool>* stop) {
  files::InputFile file(path, stop);
  std::string block(std::size_t{1} << 16, '\0');
  while (const std::size_t got = file.read(block.data(), block.size())) {
    take(std::string_view(block).substr(0, got));
  }
}

void write_text(const std::string& path, std::string_view bytes) {
  files::OutputFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void write_blocks(const std::string& path, const std::function<std::string_view()>& next) {
  files::OutputFile file(path);
  for (std::string_view block = next(); !block.empty(); block = next()) {
    file.write(block.data(), block.size());
  }
  file.commit();
}

}  // namespace qkv::app
