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

// Any number of columns at once has the bits of each column alone, whatever tiles they share; and
// nothing else is written.
template <class T>
void compare_transposed_sums(Target target) {
  const GradientKernels<T>& kernels = gradient_kernels<T>(target);
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal;
  const auto draw = [&](Index n) {
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& value : x) value = static_cast<T>(normal(random));
    return x;
  };
  constexpr Index kCount = 9;
  for (const Index width : {1, 16, 40, 65, 129}) {
    for (const Index columns : {1, 5, 6, 7, 8, 12, 13, 14, 128}) {
      SCOPED_TRACE("width " + std::to_string(width) + " columns " + std::to_string(columns));
      const Index stride = columns + kApart;
      const Index to_stride = width + kApart;
      const std::vector<T> w = draw(kCount * stride);
      const std::vector<T> x = draw(kCount * width);
      const std::vector<T> before = draw((columns + 1) * to_stride);
      std::vector<T> sums = before;
      std::vector<T> products = before;
      kernels.transposed_sum({w.data(), stride}, columns, {x.data(), width}, kCount, width,
                             {sums.data(), to_stride});
      kernels.transposed_product({w.data(), stride}, columns, {x.data(), width}, kCount, width,
                                 {products.data(), to_stride});
      std::vector<T> sums_alone = before;
      std::vector<T> products_alone = before;
      for (Index r = 0; r < columns; ++r) {
        T* const to = products_alone.data() + r * to_stride;
        for (Index c = 0; c < width; ++c) {
          double want = 0;
          for (Index n = 0; n < kCount; ++n) {
            want += static_cast<double>(w[static_cast<std::size_t>(n * stride + r)]) *
                    static_cast<double>(x[static_cast<std::size_t>(n * width + c)]);
          }
          const T got = products[static_cast<std::size_t>(r * to_stride + c)];
          ASSERT_NEAR(got, want, 100 * std::numeric_limits<T>::epsilon());
        }
        kernels.transposed_product({w.data() + r, stride}, 1, {x.data(), width}, kCount, width,
                                   {to, to_stride});
        kernels.transposed_sum({w.data() + r, stride}, 1, {x.data(), width}, kCount, width,
                               {sums_alone.data() + r * to_stride, to_stride});
      }
      ASSERT_EQ(products, products_alone);
      ASSERT_EQ(sums, sums_alone);
    }
  }
}

TEST(GradientKernels, TransposedSumsOfAnyNumberOfColumns) {
  for_each_supported([](Target target) {
    compare_transposed_sums<float>(target);
    compare_transposed_sums<double>(target);
  });
}

}  // namespace
}  // namespace qkv::kernels
