// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_kernels.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/targets.h"

namespace qkv::kernels {
namespace {

constexpr Index kApart = 5;  // numbers between rows, which are NaN

template <class T>
void compare_dots(Target target) {
  const GradientKernels<T>& kernels = gradient_kernels<T>(target);
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const Index n : {0, 1, 3, 16, 17, 31, 32, 48, 70, 512}) {
    const Index stride = n + kApart;
    constexpr Index kRows = 11;
    std::vector<T> a(static_cast<std::size_t>(kRows * stride), std::numeric_limits<T>::quiet_NaN());
    std::vector<T> b(static_cast<std::size_t>(n));
    for (T& value : b) value = static_cast<T>(normal(random));
    for (Index r = 0; r < kRows; ++r) {
      for (Index c = 0; c < n; ++c) {
        a[static_cast<std::size_t>(r * stride + c)] = static_cast<T>(normal(random));
      }
    }
    std::vector<T> all(kRows);
    kernels.dots({a.data(), stride}, kRows, b.data(), n, all.data());
    for (Index r = 0; r < kRows; ++r) {
      SCOPED_TRACE("n " + std::to_string(n) + " row " + std::to_string(r));
      double want = 0;
      double size = 0;
      for (Index c = 0; c < n; ++c) {
        const double term = static_cast<double>(a[static_cast<std::size_t>(r * stride + c)]) *
                            static_cast<double>(b[static_cast<std::size_t>(c)]);
        want += term;
        size += std::fabs(term);
      }
      // No term passes through more than n additions.
      const double ulp = std::numeric_limits<T>::epsilon();
      const T got = all[static_cast<std::size_t>(r)];
      EXPECT_NEAR(got, want, ulp * static_cast<double>(n + 2) * size);
      // Alone: the same bits.
      T alone = 1;
      kernels.dots({a.data() + r * stride, stride}, 1, b.data(), n, &alone);
      EXPECT_EQ(alone, got);
    }
  }
}

TEST(GradientKernels, DotsOfRowsAreSums) {
  for_each_supported([](Target target) {
    compare_dots<float>(target);
    compare_dots<double>(target);
  });
}

}  // namespace
}  // namespace qkv::kernels
