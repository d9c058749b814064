// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_HALF_FLOATS_H_
#define QKV_CORE_HALF_FLOATS_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include <qkv/dtype.h>

// Conversions of single numbers between float32 and 16 bits. They are inline, so that loops over
// rows become vector code.
namespace qkv::core {

// The layouts: float32 has 1 sign, 8 exponent (bias 127) and 23 mantissa bits; binary16 has 1, 5
// (bias 15) and 10.
inline constexpr std::uint32_t kSign32 = 0x80000000;
inline constexpr std::uint32_t kInfinity32 = 0x7F800000;
inline constexpr std::uint32_t kQuiet32 = 0x00400000;
inline constexpr std::uint32_t kInfinityBFloat16 = 0x7F80;
inline constexpr std::uint32_t kQuietBFloat16 = 0x0040;
inline constexpr std::uint32_t kInfinity16 = 0x7C00;
inline constexpr std::uint32_t kQuiet16 = 0x0200;

// Returns value / 2^shift, rounded to nearest, ties to even; 1 <= shift <= 31.
constexpr std::uint32_t shift_right_rounded(std::uint32_t value, int shift) noexcept {
  const std::uint32_t below_half = (std::uint32_t{1} << (shift - 1)) - 1;
  const std::uint32_t odd = (value >> shift) & 1U;
  return (value + below_half + odd) >> shift;
}

inline std::uint16_t to_bfloat16_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & ~kSign32) > kInfinity32;
  // A NaN is truncated, not rounded, because rounding could make it an infinity. It is also made
  // quiet, because its payload may be in the lost bits only.
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | kQuietBFloat16
                                        : shift_right_rounded(bits, 16));
}

inline std::uint32_t magnitude_to_float16_bits(std::uint32_t magnitude) noexcept {
  constexpr std::uint32_t kSmallestNormal = (127 - 14) << 23;     // 2^-14
  constexpr std::uint32_t kRebias = (127 - 15) << 23;             // from bias 127 to bias 15
  constexpr std::uint32_t kOverflow = ((127 + 16) << 23) - 4096;  // 65520, halfway past 65504
  constexpr std::uint32_t kToZero = (127 - 25) << 23;             // 2^-25, half the least subnormal
  if (magnitude > kInfinity32) return kInfinity16 | kQuiet16 | ((magnitude >> 13) & 0x3FFU);
  if (magnitude >= kOverflow) return kInfinity16;
  // A carry out of the mantissa correctly increments the exponent.
  if (magnitude >= kSmallestNormal) return shift_right_rounded(magnitude - kRebias, 13);
  if (magnitude < kToZero) return 0;
  // The result is subnormal: the mantissa with its hidden bit, in units of 2^-24.
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  return shift_right_rounded(mantissa, static_cast<int>(126 - exponent));
}

inline std::uint32_t magnitude_from_float16_bits(std::uint32_t magnitude) noexcept {
  if (magnitude > kInfinity16) return kInfinity32 | kQuiet32 | ((magnitude & 0x3FFU) << 13);
  if (magnitude == kInfinity16) return kInfinity32;
  if (magnitude >= 0x400U) return (magnitude << 13) + ((127 - 15) << 23);
  // A subnormal number is a multiple of 2^-24, which a float32 holds exactly.
  return std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
}

inline float from_bfloat16_bits(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t to_float16_bits(float value) noexcept {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (all & kSign32) >> 16;
  return static_cast<std::uint16_t>(sign | magnitude_to_float16_bits(all & ~kSign32));
}

inline float from_float16_bits(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  return std::bit_cast<float>(sign | magnitude_from_float16_bits(bits & 0x7FFFU));
}

inline float to_float(BFloat16 value) noexcept { return from_bfloat16_bits(value.bits); }
inline float to_float(Float16 value) noexcept { return from_float16_bits(value.bits); }

template <class Half>
Half from_float(float value) noexcept {
  if constexpr (std::is_same_v<Half, BFloat16>) {
    return Half::from_bits(to_bfloat16_bits(value));
  } else {
    static_assert(std::is_same_v<Half, Float16>);
    return Half::from_bits(to_float16_bits(value));
  }
}

}  // namespace qkv::core

#endif  // QKV_CORE_HALF_FLOATS_H_
