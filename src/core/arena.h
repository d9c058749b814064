// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ARENA_H_
#define QKV_CORE_ARENA_H_

#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

#include <qkv/view.h>

// Scratch memory, handed out to loops in aligned pieces.
namespace qkv::core {

// The alignment of each piece: one cache line. It suits any vector load, and adjacent pieces never
// share a line.
inline constexpr std::size_t kScratchAlignment = 64;

[[noreturn]] void fail_too_many_bytes();  // throws std::bad_array_new_length

// Returns `bytes` rounded up to a multiple of kScratchAlignment. Throws std::bad_array_new_length
// if that overflows.
inline std::size_t padded_bytes(std::size_t bytes) {
  constexpr std::size_t kMask = kScratchAlignment - 1;
  if (bytes > std::numeric_limits<std::size_t>::max() - kMask) fail_too_many_bytes();
  return (bytes + kMask) & ~kMask;
}

// Returns the bytes of `count` values of `size` bytes, padded. Throws std::bad_array_new_length if
// count is negative or too large.
inline std::size_t padded_bytes(Index count, std::size_t size) {
  if (count < 0 ||
      static_cast<std::size_t>(count) > std::numeric_limits<std::size_t>::max() / size) {
    fail_too_many_bytes();
  }
  return padded_bytes(static_cast<std::size_t>(count) * size);
}

// An arena hands out a block of scratch memory from the front, in pieces aligned to
// kScratchAlignment. It never grows: taking more than was reserved is a bug in the caller
// (std::logic_error).
class Arena {
 public:
  Arena() = default;
  // `memory` is aligned to kScratchAlignment and outlives the arena.
  Arena(std::byte* memory, std::size_t bytes) noexcept : memory_(memory), bytes_(bytes) {}
  // Takes `count` values of a trivial type, uninitialised.
  template <class T>
  std::span<T> take(Index count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kScratchAlignment);
    return {static_cast<T*>(take_bytes(cost<T>(count))), static_cast<std::size_t>(count)};
  }
  void reset() noexcept { used_ = 0; }
  std::size_t used() const noexcept { return used_; }
  // The bytes that take<T>(count) uses, padding included: sizes of scratch memory are sums of
  // these. Throws std::bad_array_new_length if count is negative or too large.
  template <class T>
  static std::size_t cost(Index count) {
    return padded_bytes(count, sizeof(T));
  }

 private:
  void* take_bytes(std::size_t bytes) {
    if (bytes > bytes_ - used_) fail_full(bytes);
    std::byte* const taken = memory_ + used_;
    used_ += bytes;
    return taken;
  }
  [[noreturn]] void fail_full(std::size_t bytes) const;

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

// A stand-in for an Arena that hands out nothing and adds up the bytes. The code that takes memory
// thus also computes the size to reserve.
class MeasuringArena {
 public:
  template <class T>
  std::span<T> take(Index count) {
    bytes_ += Arena::cost<T>(count);
    return {};
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

// The bytes of scratch memory that a pass needs.
struct ScratchSize {
  std::size_t shared = 0;      // shared by all tasks of the call
  std::size_t per_worker = 0;  // private to each worker
};

// Measures a pass that has take_shared(arena) and worker_bytes().
template <class Pass>
ScratchSize measure(Pass&& pass) {
  MeasuringArena arena;
  pass.take_shared(arena);
  return {arena.bytes(), pass.worker_bytes()};
}

}  // namespace qkv::core

#endif  // QKV_CORE_ARENA_H_
