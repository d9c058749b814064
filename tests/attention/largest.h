// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_LARGEST_H_
#define QKV_TESTS_ATTENTION_LARGEST_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <qkv/dtype.h>

namespace qkv::test {

// Returns the largest absolute value, or NaN if an element is NaN.
inline double largest(const std::vector<double>& x) {
  double value = 0;
  for (double y : x) {
    if (std::isnan(y)) return y;
    value = std::max(value, std::fabs(y));
  }
  return value;
}

// Returns the largest absolute difference of two elements with the same index. Returns NaN if a
// difference is NaN or a is shorter than b; throws if a is longer.
inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences;
  for (std::size_t n = 0; n < a.size(); ++n) differences.push_back(a[n] - b.at(n));
  return a.size() == b.size() ? largest(differences) : std::nan("");
}

// The error that docs/semantics.md allows an additive score for each unit's |v|, besides twice the
// naive error: rounding 1 / (1 + e^2a e^2b), and the product of two denominators that share
// a division, leave an error however small a + b is.
inline constexpr double kScoreError = 0x1.8p-22;

// The spacing of the numbers of a real dtype at x, or at 1e-30 if x is smaller.
inline double ulp(double x, DType dtype = DType::kFloat32) {
  const int bits = dtype == DType::kBFloat16  ? 8
                   : dtype == DType::kFloat16 ? 11
                   : dtype == DType::kFloat64 ? 53
                                              : 24;
  return std::ldexp(1.0, std::ilogb(std::max(x, 1e-30)) - bits + 1);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_LARGEST_H_
