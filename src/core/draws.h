// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_DRAWS_H_
#define QKV_CORE_DRAWS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include <qkv/view.h>

#include "core/philox.h"

namespace qkv::core {

// The last word of Philox's counter, one per stream of random numbers. Other files use other words:
// layers 1 to 3, spelling vectors 3, training 16 to 18.
enum class DrawStream : std::uint32_t {
  kTestDays = 4,
  kDates = 5,
  kReverse = 6,
  kHeldOut = 7,
  kBootstrap = 8,
};

// The random numbers of example n under a seed, in sequence: the words of Philox4x32-10 at the
// counters (0, n low, n high, stream), (1, n low, n high, stream), ...
class Draws {
 public:
  Draws(std::uint64_t seed, DrawStream stream, Index n) noexcept
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        n_(static_cast<std::uint64_t>(n)),
        stream_(static_cast<std::uint32_t>(stream)) {}

  // Returns a uniform number from 0 to bound - 1 (Lemire, "Fast Random Integer Generation in an
  // Interval", 2019, algorithm 5). `bound` is positive.
  std::uint32_t below(std::uint32_t bound) noexcept {
    const std::uint32_t surplus = (0U - bound) % bound;  // 2^32 mod bound
    std::uint64_t product = 0;
    do {
      product = std::uint64_t{word()} * bound;
    } while (static_cast<std::uint32_t>(product) < surplus);
    return static_cast<std::uint32_t>(product >> 32);
  }
  // Returns true with probability 1 / times.
  bool once_in(std::uint32_t times) noexcept { return below(times) == 0; }

 private:
  std::uint32_t word() noexcept {
    if (next_ == words_.size()) {
      words_ = philox4x32_10(
          {block_++, static_cast<std::uint32_t>(n_), static_cast<std::uint32_t>(n_ >> 32), stream_},
          key_);
      next_ = 0;
    }
    return words_[next_++];
  }

  std::array<std::uint32_t, 2> key_;
  std::uint64_t n_;
  std::uint32_t stream_;
  std::uint32_t block_ = 0;
  std::array<std::uint32_t, 4> words_{};
  std::size_t next_ = 4;
};

}  // namespace qkv::core

#endif  // QKV_CORE_DRAWS_H_
