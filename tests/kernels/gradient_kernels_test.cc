// SPDX-License-Identifier: Apache-2.0
#include "kernels/gradient_kernels.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/targets.h"

namespace qkv::kernels {
namespace {

constexpr Index kApart = 5;  // length of the gaps between rows, which hold NaN

template <class T>
class GradientKernelsOf : public testing::Test {
 protected:
  template <class F>
  static void for_each_target(const F& f) {
    for_each_supported([&](Target target) { f(gradient_kernels<T>(target)); });
  }
  // Returns rows of n numbers, each followed by a gap of kApart NaNs.
  static std::vector<T> random_rows(Index rows, Index n, unsigned seed) {
    std::vector<T> x = random_values<T>(rows * (n + kApart), seed);
    for (std::size_t index = 0; index < x.size(); ++index) {
      if (static_cast<Index>(index) % (n + kApart) >= n) {
        x[index] = std::numeric_limits<T>::quiet_NaN();
      }
    }
    return x;
  }
};
TYPED_TEST_SUITE(GradientKernelsOf, SumTypes);

TYPED_TEST(GradientKernelsOf, DotsOfRowsAreSums) {
  using T = TypeParam;
  constexpr Index kRows = 11;
  this->for_each_target([&](const GradientKernels<T>& kernels) {
    for (const Index n : {0, 1, 3, 16, 17, 31, 32, 48, 70, 512}) {
      const Index stride = n + kApart;
      const std::vector<T> a = this->random_rows(kRows, n, 7);
      const std::vector<T> b = random_values<T>(n, 8);
      std::vector<T> all(kRows);
      kernels.dots({a.data(), stride}, kRows, b.data(), n, all.data());
      for (Index r = 0; r < kRows; ++r) {
        SCOPED_TRACE("n " + std::to_string(n) + " row " + std::to_string(r));
        double want = 0;
        double size = 0;
        for (Index c = 0; c < n; ++c) {
          const double term =
              static_cast<double>(a[at(r * stride + c)]) * static_cast<double>(b[at(c)]);
          want += term;
          size += std::fabs(term);
        }
        // No term passes through more than n additions.
        const double ulp = std::numeric_limits<T>::epsilon();
        EXPECT_NEAR(all[at(r)], want, ulp * static_cast<double>(n + 2) * size);
        // A call for this row alone gives the same bits.
        T alone = 1;
        kernels.dots({a.data() + r * stride, stride}, 1, b.data(), n, &alone);
        EXPECT_EQ(alone, all[at(r)]);
      }
    }
  });
}

// Rows that are computed together are bit-identical with each row alone.
TYPED_TEST(GradientKernelsOf, RowDotsHaveTheBitsOfEachRow) {
  using T = TypeParam;
  constexpr Index kRows = 43;
  this->for_each_target([&](const GradientKernels<T>& kernels) {
    for (const Index n : {1, 2, 3, 4, 5, 16, 63, 64, 65, 70, 131}) {
      const Index stride = n + kApart;
      const std::vector<T> a = this->random_rows(kRows, n, 8);
      const std::vector<T> b = this->random_rows(kRows, n, 9);
      for (const Index rows : {1, 8, 15, 16, 17, 43}) {
        std::vector<T> all(kRows, T(-7));
        kernels.row_dots({a.data(), stride}, {b.data(), stride}, rows, n, all.data());
        for (Index r = 0; r < kRows; ++r) {
          SCOPED_TRACE("n " + std::to_string(n) + " row " + std::to_string(r));
          T alone = -7;
          if (r < rows) {
            const Index index = r * stride;
            kernels.row_dots({a.data() + index, stride}, {b.data() + index, stride}, 1, n, &alone);
          }
          EXPECT_EQ(all[at(r)], alone);
        }
      }
    }
  });
}

TYPED_TEST(GradientKernelsOf, EachNonFiniteNumberIsFound) {
  using Limits = std::numeric_limits<TypeParam>;
  this->for_each_target([&](const GradientKernels<TypeParam>& kernels) {
    for (const TypeParam special : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      for (const Index n : {0, 1, 7, 16, 63, 64, 65, 150}) {
        std::vector<TypeParam> x(at(n + 1), Limits::max());
        x.back() = special;
        EXPECT_TRUE(kernels.all_finite(x.data(), n)) << n;
        for (Index index = 0; index < n; ++index) {
          x[at(index)] = special;
          EXPECT_FALSE(kernels.all_finite(x.data(), n)) << index << " of " << n;
          x[at(index)] = -Limits::max();
        }
      }
    }
  });
}

// clear_masked() writes 0 where the score is -inf, and nothing else.
TYPED_TEST(GradientKernelsOf, MaskedElementsBecomeZero) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const std::vector<T> scores = {-Limits::infinity(), Limits::infinity(), Limits::lowest(),
                                 Limits::quiet_NaN(), T(0)};
  this->for_each_target([&](const GradientKernels<T>& kernels) {
    for (const Index n : {0, 1, 7, 16, 33, 64}) {
      std::vector<T> s(at(n));
      for (std::size_t c = 0; c < s.size(); ++c) s[c] = scores[(c + c / 16) % scores.size()];
      std::vector<T> to(at(n + 1), Limits::infinity());  // the last one must not change
      kernels.clear_masked(to.data(), s.data(), n);
      for (Index c = 0; c <= n; ++c) {
        const bool masked = c < n && s[at(c)] == -Limits::infinity();
        EXPECT_EQ(to[at(c)], masked ? T(0) : Limits::infinity()) << c << " of " << n;
      }
    }
  });
}

// Columns that are computed together are bit-identical with each column alone, whatever tiles they
// share. transposed_sum() adds the result of transposed_product() to the previous contents in one
// addition. Neither writes beyond the columns.
TYPED_TEST(GradientKernelsOf, TransposedSumsOfAnyNumberOfColumns) {
  using T = TypeParam;
  constexpr Index kCount = 9;
  this->for_each_target([&](const GradientKernels<T>& kernels) {
    for (const Index width : {1, 16, 40, 65, 129}) {
      for (const Index columns : {1, 5, 6, 7, 8, 12, 13, 14, 128}) {
        SCOPED_TRACE("width " + std::to_string(width) + " columns " + std::to_string(columns));
        const Index stride = columns + kApart;
        const Index to_stride = width + kApart;
        const std::vector<T> w = random_values<T>(kCount * stride, 8);
        const std::vector<T> x = random_values<T>(kCount * width, 9);
        const std::vector<T> before = random_values<T>((columns + 1) * to_stride, 10);
        std::vector<T> sums = before;
        std::vector<T> products = before;
        kernels.transposed_sum({w.data(), stride}, columns, {x.data(), width}, kCount, width,
                               {sums.data(), to_stride});
        kernels.transposed_product({w.data(), stride}, columns, {x.data(), width}, kCount, width,
                                   {products.data(), to_stride});
        std::vector<T> sums_alone = before;
        std::vector<T> products_alone = before;
        for (Index r = 0; r < columns; ++r) {
          for (Index c = 0; c < width; ++c) {
            double want = 0;
            for (Index n = 0; n < kCount; ++n) {
              want += static_cast<double>(w[at(n * stride + r)]) *
                      static_cast<double>(x[at(n * width + c)]);
            }
            const std::size_t index = at(r * to_stride + c);
            ASSERT_NEAR(products[index], want, 100 * std::numeric_limits<T>::epsilon());
            ASSERT_EQ(sums[index], before[index] + products[index]);
          }
          kernels.transposed_product({w.data() + r, stride}, 1, {x.data(), width}, kCount, width,
                                     {products_alone.data() + r * to_stride, to_stride});
          kernels.transposed_sum({w.data() + r, stride}, 1, {x.data(), width}, kCount, width,
                                 {sums_alone.data() + r * to_stride, to_stride});
        }
        ASSERT_EQ(products, products_alone);
        ASSERT_EQ(sums, sums_alone);
        for (std::size_t index = 0; index < before.size(); ++index) {
          const auto r = static_cast<Index>(index) / to_stride;
          if (r < columns && static_cast<Index>(index) % to_stride < width) continue;
          ASSERT_EQ(products[index], before[index]) << "written beyond the columns, at " << index;
          ASSERT_EQ(sums[index], before[index]) << "written beyond the columns, at " << index;
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv::kernels
