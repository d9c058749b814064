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

// Rows at once have the bits of each row alone. Between rows are numbers that are NaN.
template <class T>
void compare_row_dots(Target target) {
  const GradientKernels<T>& kernels = gradient_kernels<T>(target);
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal;
  constexpr Index kRows = 43;
  for (const Index n : {1, 2, 3, 4, 5, 16, 63, 64, 65, 70, 131}) {
    const Index stride = n + kApart;
    std::vector<T> a(static_cast<std::size_t>(kRows * stride), std::numeric_limits<T>::quiet_NaN());
    std::vector<T> b = a;
    for (Index r = 0; r < kRows; ++r) {
      for (Index c = 0; c < n; ++c) {
        a[static_cast<std::size_t>(r * stride + c)] = static_cast<T>(normal(random));
        b[static_cast<std::size_t>(r * stride + c)] = static_cast<T>(normal(random));
      }
    }
    for (const Index rows : {1, 8, 15, 16, 17, 43}) {
      std::vector<T> all(kRows, T(-7));
      kernels.row_dots({a.data(), stride}, {b.data(), stride}, rows, n, all.data());
      for (Index r = 0; r < kRows; ++r) {
        SCOPED_TRACE("n " + std::to_string(n) + " row " + std::to_string(r));
        T alone = -7;
        if (r < rows) {
          const Index at = r * stride;
          kernels.row_dots({a.data() + at, stride}, {b.data() + at, stride}, 1, n, &alone);
        }
        EXPECT_EQ(all[static_cast<std::size_t>(r)], alone);
      }
    }
  }
}

TEST(GradientKernels, RowDotsHaveTheBitsOfEachRow) {
  for_each_supported([](Target target) {
    compare_row_dots<float>(target);
    compare_row_dots<double>(target);
  });
}

template <class T>
void find_each_odd_number(Target target) {
  const GradientKernels<T>& kernels = gradient_kernels<T>(target);
  for (const T odd : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                      -std::numeric_limits<T>::infinity()}) {
    for (const Index n : {0, 1, 7, 16, 63, 64, 65, 150}) {
      std::vector<T> x(static_cast<std::size_t>(n + 1), std::numeric_limits<T>::max());
      x.back() = odd;
      EXPECT_TRUE(kernels.all_finite(x.data(), n)) << n;
      for (Index at = 0; at < n; ++at) {
        T& place = x[static_cast<std::size_t>(at)];
        place = odd;
        EXPECT_FALSE(kernels.all_finite(x.data(), n)) << at << " of " << n;
        place = -std::numeric_limits<T>::max();
      }
    }
  }
}

TEST(GradientKernels, EachNumberThatIsNotFiniteIsFound) {
  for_each_supported([](Target target) {
    find_each_odd_number<float>(target);
    find_each_odd_number<double>(target);
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
