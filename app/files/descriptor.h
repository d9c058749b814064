// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_DESCRIPTOR_H_
#define QKV_FILES_DESCRIPTOR_H_

#include <utility>

namespace qkv::files {

// Owns a file descriptor. Movable, not copyable.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  // Closes the descriptor if it is open. Returns 0 or, if that failed, an errno value.
  int close() noexcept;

 private:
  int fd_;
};

}  // namespace qkv::files

#endif  // QKV_FILES_DESCRIPTOR_H_
