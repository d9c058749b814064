// SPDX-License-Identifier: Apache-2.0
#include "ranks/exact_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "core/storage.h"
#include "ranks/collective.h"

namespace qkv::ranks {
namespace {

constexpr int kDigitBits = 32;
constexpr std::int64_t kDigit = std::int64_t{1} << kDigitBits;
constexpr int kMantissa = 53;  // bits of a float64

// The place of the first digit's lowest bit, which is not above that of the smallest term written
// with 53 bits, and the number of digits: those of the largest term, and one for carries.
constexpr int kLowOfFloat32 = -224;  // 2^-149 has its lowest of 53 bits at -201
constexpr int kSizeOfFloat32 = 12;
constexpr int kLowOfFloat64 = -1152;  // 2^-1074: at -1126
constexpr int kSizeOfFloat64 = 69;

void add_to(std::int64_t& bits, double term) {
  bits = std::bit_cast<std::int64_t>(std::bit_cast<double>(bits) + term);
}

// Makes all digits but the last one 0 .. 2^32 - 1.
void carry(std::span<std::int64_t> digits) {
  for (std::size_t n = 0; n + 1 < digits.size(); ++n) {
    const std::int64_t over = digits[n] >> kDigitBits;  // rounds down
    digits[n] -= over * kDigit;
    digits[n + 1] += over;
  }
}

}  // namespace

ExactSums::ExactSums(DType dtype, Index count)
    : count_(count),
      size_(dtype == DType::kFloat64 ? kSizeOfFloat64 : kSizeOfFloat32),
      low_(dtype == DType::kFloat64 ? kLowOfFloat64 : kLowOfFloat32),
      digits_(static_cast<std::size_t>(count * stride())) {}

void ExactSums::add(Index n, double term) {
  if (term == 0) return;
  std::int64_t* const digits = digits_of(n);
  if (!std::isfinite(term)) return add_to(digits[size_], term);
  int exponent = 0;
  const auto mantissa =
      static_cast<std::int64_t>(std::ldexp(std::frexp(term, &exponent), kMantissa));
  const int place = exponent - kMantissa - low_;
  const int shift = place % kDigitBits;
  // The mantissa in two halves of at most 32 bits, of which the upper one is signed.
  const std::int64_t lower = (mantissa & (kDigit - 1)) << shift;  // below 2^63
  const std::int64_t upper = (mantissa >> kDigitBits) * (std::int64_t{1} << shift);
  std::int64_t* const to = digits + place / kDigitBits;
  to[0] += lower & (kDigit - 1);
  to[1] += (lower >> kDigitBits) + (upper & (kDigit - 1));
  to[2] += upper >> kDigitBits;
}

void ExactSums::add(const ConstView& terms) {
  core::visit_dtype(terms.dtype(), [&]<class Stored>(Stored*) {
    const auto* const values = static_cast<const Stored*>(terms.data());
    for (Index n = 0; n < count_; ++n) add(n, core::to_accumulator<double>(values[n]));
  });
}

void ExactSums::add(std::span<const Index> sums, const ConstView& terms) {
  core::visit_dtype(terms.dtype(), [&]<class Stored>(Stored*) {
    const auto* value = static_cast<const Stored*>(terms.data());
    for (const Index n : sums) add(n, core::to_accumulator<double>(*value++));
  });
}

void ExactSums::add_ranks(Ranks& ranks) {
  combine(ranks, std::as_writable_bytes(std::span(digits_)), [&](std::span<const std::byte> bytes) {
    const auto* other = reinterpret_cast<const std::int64_t*>(bytes.data());
    for (Index n = 0; n < count_; ++n, other += stride()) {
      std::int64_t* const digits = digits_of(n);
      for (Index d = 0; d < size_; ++d) digits[d] += other[d];
      add_to(digits[size_], std::bit_cast<double>(other[size_]));
    }
  });
}

double ExactSums::operator[](Index n) const {
  std::array<std::int64_t, kSizeOfFloat64> copy{};
  const std::span digits(copy.data(), static_cast<std::size_t>(size_));
  std::copy_n(digits_of(n), size_, copy.data());
  const double others = std::bit_cast<double>(digits_of(n)[size_]);
  if (others != 0) return others;
  carry(digits);
  const bool is_negative = digits.back() < 0;
  if (is_negative) {
    for (std::int64_t& digit : digits) digit = -digit;
    carry(digits);
  }
  double sum = 0;
  for (std::size_t d = digits.size(); d-- > 0;) {
    if (digits[d] == 0) continue;
    sum += std::ldexp(static_cast<double>(digits[d]), low_ + kDigitBits * static_cast<int>(d));
  }
  return is_negative ? -sum : sum;
}

}  // namespace qkv::ranks
