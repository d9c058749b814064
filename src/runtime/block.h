// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_BLOCK_H_
#define QKV_RUNTIME_BLOCK_H_

#include <cstddef>
#include <utility>

namespace qkv::runtime {

// Scratch memory that only grows. It is aligned to kScratchAlignment and has a size that is a
// multiple of it, so that two workers never write to the same cache line.
class Block {
 public:
  Block() = default;
  ~Block() { release(); }
  Block(Block&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Block& operator=(Block&&) = delete;
  void swap(Block& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Reserves at least `bytes`; growing discards the contents. After std::bad_alloc the block is
  // empty.
  void grow(std::size_t bytes);
  void release() noexcept;

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace qkv::runtime

#endif  // QKV_RUNTIME_BLOCK_H_
