// SPDX-License-Identifier: Apache-2.0
#include "ranks/unordered_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/storage.h"
#include "ranks/collective.h"

namespace qkv::ranks {
namespace {

constexpr int kDigitBits = 32;
constexpr std::int64_t kDigit = std::int64_t{1} << kDigitBits;
constexpr int kMantissa = 53;  // bits of a float64
constexpr int kTermDigits = 3;
// The exponent of the digit at place 0: below the exponent of the lowest bit of any float64.
constexpr int kLowest = -1152;

// Carries, so that all digits but the last one are in 0 .. 2^32 - 1.
template <std::size_t kCount>
void carry(std::int64_t (&digits)[kCount]) {
  for (std::size_t n = 0; n + 1 < kCount; ++n) {
    const std::int64_t over = digits[n] >> kDigitBits;  // rounds down
    digits[n] -= over * kDigit;
    digits[n + 1] += over;
  }
}

}  // namespace

UnorderedSums::UnorderedSums(Index count) : sums_(static_cast<std::size_t>(count)) {}

// Drops the digits below the place `lowest`.
void UnorderedSums::drop_below(Sum& sum, int lowest) {
  const int by = std::min(lowest - sum.lowest, kDigits);
  std::copy(sum.digits + by, sum.digits + kDigits, sum.digits);
  std::fill(sum.digits + kDigits - by, sum.digits + kDigits, 0);
  sum.lowest = lowest;
}

void UnorderedSums::add(Index n, double term) {
  if (term == 0) return;
  Sum& sum = sums_[static_cast<std::size_t>(n)];
  if (std::isnan(term)) {
    sum.has_nan = true;
    return;
  }
  if (std::isinf(term)) {
    sum.has_infinity[term > 0 ? 0 : 1] = true;
    return;
  }
  int exponent = 0;
  const auto mantissa =
      static_cast<std::int64_t>(std::ldexp(std::frexp(term, &exponent), kMantissa));
  const int bit = exponent - kMantissa - kLowest;
  const int shift = bit % kDigitBits;
  // The lower 32 bits of the mantissa, below 2^63 when shifted, and the upper bits, with the sign.
  const std::int64_t lower = (mantissa & (kDigit - 1)) << shift;
  const std::int64_t upper = (mantissa >> kDigitBits) * (std::int64_t{1} << shift);
  const std::int64_t digits[kTermDigits] = {
      lower & (kDigit - 1), (lower >> kDigitBits) + (upper & (kDigit - 1)), upper >> kDigitBits};
  const int first = bit / kDigitBits;
  const int lowest = first + kTermDigits - kDigits;
  if (lowest > sum.lowest) drop_below(sum, lowest);
  for (int d = std::max(0, sum.lowest - first); d < kTermDigits; ++d) {
    sum.digits[first + d - sum.lowest] += digits[d];
  }
}

void UnorderedSums::add(const ConstView& terms) {
  core::visit_dtype(terms.dtype(), [&]<class Stored>(Stored*) {
    const auto* const values = static_cast<const Stored*>(terms.data());
    for (Index n = 0; n < count(); ++n) add(n, core::to_accumulator<double>(values[n]));
  });
}

void UnorderedSums::add(std::span<const Index> sums, const ConstView& terms) {
  core::visit_dtype(terms.dtype(), [&]<class Stored>(Stored*) {
    const auto* value = static_cast<const Stored*>(terms.data());
    for (const Index n : sums) add(n, core::to_accumulator<double>(*value++));
  });
}

void UnorderedSums::add_ranks(Ranks& ranks) {
  combine(ranks, std::as_writable_bytes(std::span(sums_)), [&](std::span<const std::byte> bytes) {
    const auto* other = reinterpret_cast<const Sum*>(bytes.data());
    for (Sum& sum : sums_) {
      Sum term = *other++;
      const int lowest = std::max(sum.lowest, term.lowest);
      drop_below(sum, lowest);
      drop_below(term, lowest);
      for (int d = 0; d < kDigits; ++d) sum.digits[d] += term.digits[d];
      for (const int sign : {0, 1}) sum.has_infinity[sign] |= term.has_infinity[sign];
      sum.has_nan |= term.has_nan;
    }
  });
}

double UnorderedSums::operator[](Index n) const {
  const Sum& sum = sums_[static_cast<std::size_t>(n)];
  const auto [positive, negative] = sum.has_infinity;
  if (sum.has_nan || (positive && negative)) return std::numeric_limits<double>::quiet_NaN();
  if (positive || negative) return std::numeric_limits<double>::infinity() * (positive ? 1 : -1);
  std::int64_t digits[kDigits + 1] = {};
  std::copy_n(sum.digits, kDigits, digits);
  carry(digits);
  const bool is_negative = digits[kDigits] < 0;
  if (is_negative) {
    for (std::int64_t& digit : digits) digit = -digit;
    carry(digits);
  }
  double total = 0;
  for (int d = kDigits; d >= 0; --d) {
    total += std::ldexp(static_cast<double>(digits[d]), kLowest + kDigitBits * (sum.lowest + d));
  }
  return is_negative ? -total : total;
}

}  // namespace qkv::ranks
