// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_PHILOX_H_
#define QKV_CORE_PHILOX_H_

#include <array>
#include <cmath>
#include <cstdint>

#include <qkv/view.h>

namespace qkv::core {

// Philox4x32-10: ten rounds of two 32x32 -> 64 bit products, a pure function of counter and key
// (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The paper
// gives the multipliers and the key increments (from the golden ratio and sqrt(3) - 1).
constexpr std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                     std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

// The numbers that determine the dropped weights of one query: the key, the upper words of the
// counter, and the threshold with which words are compared.
struct DropoutRow {
  std::uint32_t key[2] = {};
  std::uint32_t threshold = 0;
  std::uint32_t b = 0;
  std::uint32_t h = 0;
  std::uint32_t i = 0;
};

// The dropout draw: key = seed (low, high), counter = (floor(j/4), i, h, b), word j mod 4. The
// weight is dropped if the word is less than floor(p * 2^32).
class DropoutMask {
 public:
  DropoutMask() = default;
  DropoutMask(double p, std::uint64_t seed) noexcept
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        threshold_(static_cast<std::uint64_t>(std::floor(p * 4294967296.0))) {}

  DropoutRow row(Index b, Index h, Index i) const noexcept {
    return {{key_[0], key_[1]},
            static_cast<std::uint32_t>(threshold_),  // p < 1, so it is less than 2^32
            static_cast<std::uint32_t>(b),
            static_cast<std::uint32_t>(h),
            static_cast<std::uint32_t>(i)};
  }

  // Returns, for each of keys 4*group .. 4*group+3, whether its weight is kept.
  std::array<bool, 4> kept(Index b, Index h, Index i, Index group) const noexcept {
    const auto words =
        philox4x32_10({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(i),
                       static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(b)},
                      key_);
    return {words[0] >= threshold_, words[1] >= threshold_, words[2] >= threshold_,
            words[3] >= threshold_};
  }

 private:
  std::array<std::uint32_t, 2> key_{};
  std::uint64_t threshold_ = 0;
};

}  // namespace qkv::core

#endif  // QKV_CORE_PHILOX_H_
