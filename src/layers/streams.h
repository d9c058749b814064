// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_STREAMS_H_
#define QKV_LAYERS_STREAMS_H_

#include <array>
#include <cstdint>

#include "core/philox.h"

namespace qkv::layers {

// The streams of random numbers, identified by the last counter word, so that one seed serves all.
enum class Stream : std::uint32_t { kInitialise = 1, kDropoutSeed = 2, kDropout = 3 };

// Returns four words of the stream at (a, b), where a has 64 bits.
inline std::array<std::uint32_t, 4> draw(std::uint64_t seed, Stream stream, std::uint64_t a,
                                         std::uint32_t b) noexcept {
  return core::philox4x32_10(
      {static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32), b,
       static_cast<std::uint32_t>(stream)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// Joins two words to one number, the first one low.
inline std::uint64_t joined(std::uint32_t low, std::uint32_t high) noexcept {
  return (std::uint64_t{high} << 32) | low;
}

}  // namespace qkv::layers

#endif  // QKV_LAYERS_STREAMS_H_
