// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_LARGEST_H_
#define QKV_TESTS_ATTENTION_LARGEST_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <qkv/dtype.h>

namespace qkv::test {

inline double largest(const std::vector<double>& x) {
  double value = 0;
  for (double y : x) value = std::max(value, std::fabs(y));
  return value;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double value = 0;
  for (std::size_t n = 0; n < a.size(); ++n) value = std::max(value, std::fabs(a[n] - b[n]));
  return value;
}

// The spacing of a dtype's numbers at x.
inline double ulp(double x, DType dtype = DType::kFloat32) {
  const int bits = dtype == DType::kBFloat16 ? 8 : dtype == DType::kFloat16 ? 11 : 24;
  return std::ldexp(1.0, std::ilogb(std::max(x, 1e-30)) - bits + 1);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_LARGEST_H_
