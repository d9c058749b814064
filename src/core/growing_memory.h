// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_GROWING_MEMORY_H_
#define QKV_CORE_GROWING_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace qkv::core {

// Memory, aligned to a cache line, that grows at its end and keeps its contents. For large blocks
// realloc lets the system move pages instead of copying.
class GrowingMemory {
 public:
  GrowingMemory() = default;
  ~GrowingMemory() { std::free(block_); }
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  std::byte* data() const noexcept { return block_ == nullptr ? nullptr : block_ + skipped_; }
  // Grows the memory to `bytes`, unless it has as many already. Throws std::bad_alloc, and then
  // leaves the memory unchanged.
  void grow(std::size_t bytes) {
    if (bytes <= bytes_) return;
    if (bytes > std::numeric_limits<std::size_t>::max() - kAlignment) throw std::bad_alloc();
    auto* const block = static_cast<std::byte*>(std::realloc(block_, bytes + kAlignment));
    if (block == nullptr) throw std::bad_alloc();
    const std::size_t past = reinterpret_cast<std::uintptr_t>(block) % kAlignment;
    const std::size_t skipped = past == 0 ? 0 : kAlignment - past;
    if (skipped != skipped_ && bytes_ > 0) std::memmove(block + skipped, block + skipped_, bytes_);
    block_ = block;
    skipped_ = skipped;
    bytes_ = bytes;
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::byte* block_ = nullptr;
  std::size_t skipped_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_GROWING_MEMORY_H_
