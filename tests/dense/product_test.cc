// SPDX-License-Identifier: Apache-2.0
#include "dense/product.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dense/panels.h"
#include "kernels/target.h"
#include "reference/product.h"
#include "tests/support/in_blocks.h"

// Tests the products of each target that this CPU supports against plain loops: bit-identical where
// multiply-adds are fused, and within the rounding of each product and sum where they are not.
namespace qkv::dense {
namespace {

// A matrix with a gap of NaNs after each row but the last.
template <class T>
class Matrix {
 public:
  Matrix(Index rows, Index columns, int seed)
      : rows_(rows),
        columns_(columns),
        values_(static_cast<std::size_t>(rows == 0 ? 0 : rows * stride() - kGap),
                std::numeric_limits<T>::quiet_NaN()) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::normal_distribution<double> normal;
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c) at(r, c) = static_cast<T>(normal(random));
    }
  }
  Index rows() const { return rows_; }
  Index columns() const { return columns_; }
  Index stride() const { return columns_ + kGap; }
  T& at(Index r, Index c) { return values_[static_cast<std::size_t>(r * stride() + c)]; }
  T at(Index r, Index c) const { return values_[static_cast<std::size_t>(r * stride() + c)]; }
  const T* data() const { return values_.data(); }
  T* data() { return values_.data(); }
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator RowsOf<const T>() const { return {data(), stride()}; }
  operator RowsOf<T>() { return {data(), stride()}; }  // NOLINT(google-explicit-constructor)

 private:
  static constexpr Index kGap = 3;
  Index rows_, columns_;
  std::vector<T> values_;
};

// Expects that elements differ by at most `bound`, and that the gaps of `got` are still NaN.
template <class T>
void expect_equal(const Matrix<T>& got, const Matrix<T>& want, const Matrix<T>& bound,
                  const std::string& replay) {
  for (Index r = 0; r < got.rows(); ++r) {
    for (Index c = 0; c < got.columns(); ++c) {
      if (!std::isfinite(want.at(r, c))) {
        ASSERT_EQ(got.at(r, c), want.at(r, c)) << replay << " at " << r << " " << c;
      } else {
        ASSERT_LE(std::fabs(got.at(r, c) - want.at(r, c)), bound.at(r, c))
            << replay << " at " << r << " " << c;
      }
    }
    for (Index c = got.columns(); r + 1 < got.rows() && c < got.stride(); ++c) {
      ASSERT_TRUE(std::isnan(got.at(r, c))) << replay << " behind row " << r;
    }
  }
}

// Bounds how far a sum of `terms` products moves if each product is rounded before it is added.
// `size` is the sum of the products' absolute values.
template <class T>
T unfused_bound(Index terms, T size) {
  return static_cast<T>(terms + 1) * std::numeric_limits<T>::epsilon() * size;
}

template <class T>
class Dense : public testing::Test {
 protected:
  // Calls f(kernels, whether products and sums are fused) for each target and for the plain loops.
  template <class F>
  static void for_each_target(const F& f) {
    for (const kernels::Target target : kernels::kTargets) {
      if (!kernels::is_supported(target)) continue;
      SCOPED_TRACE(std::string(kernels::name_of(target)));
      f(kernels_of<T>(target), target != kernels::Target::kSse4);
    }
    SCOPED_TRACE("reference");
    f(Kernels<T>{}, true);
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Dense, Types);

TYPED_TEST(Dense, TargetsHaveKernels) {
  using T = TypeParam;
  for (const kernels::Target target : kernels::kTargets) {
    if (!kernels::is_supported(target)) continue;
    EXPECT_TRUE(kernels_of<T>(target).given());
  }
  EXPECT_FALSE(kernels_of<T>(std::nullopt).given());
}

// Sizes at the edges of tiles (6 rows, 24 and 64 columns) and of blocks (64 terms).
constexpr Index kRowCounts[] = {1, 5, 6, 7, 13};
constexpr Index kTerms[] = {0, 1, 2, 23, 64, 65, 257};
constexpr Index kColumns[] = {1, 3, 8, 23, 24, 25, 63, 64, 65, 130};

TYPED_TEST(Dense, ProductsEqualPlainLoops) {
  using T = TypeParam;
  int seed = 0;
  for (const Index rows : kRowCounts) {
    for (const Index inner : kTerms) {
      for (const Index columns : kColumns) {
        const Matrix<T> x(rows, inner, ++seed);
        const Matrix<T> w(inner, columns, ++seed);
        const Matrix<T> before(rows, columns, ++seed);
        Matrix<T> want = before;  // plus the product
        reference::add_product(x.data(), x.stride(), rows, inner, w.data(), w.stride(), columns,
                               want.data(), want.stride());
        Matrix<T> alone = before;  // overwritten by the product
        reference::product(x.data(), x.stride(), rows, inner, w.data(), w.stride(), columns,
                           alone.data(), alone.stride());
        Matrix<T> exact = before;
        Matrix<T> bound = before;
        for (Index r = 0; r < rows; ++r) {
          for (Index o = 0; o < columns; ++o) {
            exact.at(r, o) = 0;
            T size = std::fabs(before.at(r, o));
            for (Index i = 0; i < inner; ++i) size += std::fabs(x.at(r, i) * w.at(i, o));
            bound.at(r, o) = unfused_bound(inner, size);
          }
        }
        this->for_each_target([&](const Kernels<T>& by, bool fused) {
          Matrix<T> y = before;
          const std::string replay = std::to_string(rows) + " x " + std::to_string(inner) + " x " +
                                     std::to_string(columns);
          add_product<T>(by, x, rows, inner, w, columns, y, {});
          expect_equal(y, want, fused ? exact : bound, replay + ", added");
          product<T>(by, x, rows, inner, w, columns, y, {});
          expect_equal(y, alone, fused ? exact : bound, replay);
        });
      }
    }
  }
}

TYPED_TEST(Dense, PackedProductsEqualPlainLoops) {
  using T = TypeParam;
  int seed = 0;
  for (const Index rows : {0, 1, 6, 13}) {
    for (const Index inputs : {1, 7, 64, 257}) {
      for (const Index outputs : {1, 63, 64, 65, 130}) {
        const Matrix<T> x(rows, inputs, ++seed);
        const Matrix<T> w(outputs, inputs, ++seed);
        const Matrix<T> bias(1, outputs, ++seed);
        for (const bool biased : {false, true}) {
          Matrix<T> want(rows, outputs, 0);
          Matrix<T> exact = want;
          Matrix<T> bound = want;
          for (Index r = 0; r < rows; ++r) {
            for (Index o = 0; o < outputs; ++o) {
              const T sum = test::sum_in_blocks<T>(inputs, [&](Index i, T so_far) {
                return std::fma(x.at(r, i), w.at(o, i), so_far);
              });
              T size = 0;
              for (Index i = 0; i < inputs; ++i) size += std::fabs(x.at(r, i) * w.at(o, i));
              want.at(r, o) = biased ? sum + bias.at(0, o) : sum;
              exact.at(r, o) = 0;
              bound.at(r, o) = unfused_bound(inputs, size + std::fabs(want.at(r, o)));
            }
          }
          this->for_each_target([&](const Kernels<T>& by, bool fused) {
            std::vector<T> data(static_cast<std::size_t>(Panels<T>::size(outputs, inputs)), T(9));
            for (Index panel = 0; panel * kPanel < outputs; ++panel) {
              pack_panel<T>(by, w, outputs, inputs, panel, data.data());
            }
            Matrix<T> y(rows, outputs, 5);
            multiply<T>(by, x, rows, {outputs, inputs, data.data()}, biased ? bias.data() : nullptr,
                        y, {});
            expect_equal(y, want, fused ? exact : bound,
                         std::to_string(rows) + " x " + std::to_string(inputs) + " x " +
                             std::to_string(outputs));
          });
        }
      }
    }
  }
}

// Computes to += dy^T x by plain loops.
template <class T>
void add_plain(const Matrix<T>& dy, const Matrix<T>& x, Matrix<T>& to) {
  std::vector<T> sums(static_cast<std::size_t>(x.columns()));
  for (Index o = 0; o < dy.columns(); ++o) {
    reference::weighted_row_sum(dy.data() + o, dy.stride(), x.data(), x.stride(), dy.rows(),
                                x.columns(), sums.data());
    for (Index i = 0; i < x.columns(); ++i) to.at(o, i) += sums[static_cast<std::size_t>(i)];
  }
}

TYPED_TEST(Dense, TransposedProductsEqualPlainLoops) {
  using T = TypeParam;
  int seed = 0;
  for (const Index rows : {1, 2, 65, 128}) {
    for (const Index columns : {1, 5, 6, 7, 25}) {
      for (const Index width : {1, 3, 8, 23, 24, 25, 64, 65, 130}) {
        Matrix<T> dy(rows, columns, ++seed);
        const Matrix<T> x(rows, width, ++seed);
        const Matrix<T> before(columns, width, ++seed);
        for (Index o = 0; o < columns; ++o) dy.at(rows / 2, o) = 0;  // a row of padding
        Matrix<T> want = before;
        add_plain(dy, x, want);
        Matrix<T> exact = before;
        Matrix<T> bound = before;
        for (Index o = 0; o < columns; ++o) {
          for (Index i = 0; i < width; ++i) {
            exact.at(o, i) = 0;
            T size = std::fabs(before.at(o, i));
            for (Index r = 0; r < rows; ++r) size += std::fabs(dy.at(r, o) * x.at(r, i));
            bound.at(o, i) = unfused_bound(rows, size);
          }
        }
        std::vector<T> scratch(static_cast<std::size_t>(width));
        this->for_each_target([&](const Kernels<T>& by, bool fused) {
          for (const bool finite : {true, false}) {  // finite x may be declared non-finite
            Matrix<T> to = before;
            add_transposed_product<T>(by, dy, columns, x, rows, width, finite, to, scratch.data());
            expect_equal(to, want, fused ? exact : bound,
                         std::to_string(rows) + " x " + std::to_string(columns) + " x " +
                             std::to_string(width) + (finite ? ", finite" : ""));
          }
        });
      }
    }
  }
}

// Row 3 of x is NaN, where dy is 0, as in padding. x[5,7] is infinite, and in row 5 of dy only
// element 2 is 0.
TYPED_TEST(Dense, NonFiniteNumbersCountOnlyWhereDyIsNotZero) {
  using T = TypeParam;
  Matrix<T> dy(9, 8, 1);
  Matrix<T> x(9, 30, 2);
  for (Index o = 0; o < 8; ++o) dy.at(3, o) = 0;
  dy.at(5, 2) = 0;
  for (Index i = 0; i < 30; ++i) x.at(3, i) = std::numeric_limits<T>::quiet_NaN();
  x.at(5, 7) = std::numeric_limits<T>::infinity();
  const Matrix<T> before(8, 30, 3);
  Matrix<T> want = before;
  add_plain(dy, x, want);
  EXPECT_TRUE(std::isinf(want.at(1, 7)));
  EXPECT_TRUE(std::isfinite(want.at(2, 7)));
  Matrix<T> bound(8, 30, 0);
  for (Index o = 0; o < 8; ++o) {
    for (Index i = 0; i < 30; ++i) bound.at(o, i) = unfused_bound(9, T(30));
  }
  std::vector<T> scratch(30);
  this->for_each_target([&](const Kernels<T>& by, bool) {
    EXPECT_FALSE(all_finite<T>(by, x, 9, 30));
    Matrix<T> to = before;
    add_transposed_product<T>(by, dy, 8, x, 9, 30, false, to, scratch.data());
    expect_equal(to, want, bound, "");
  });
}

TYPED_TEST(Dense, AllFiniteSeesEveryElementAndNothingElse) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  for (const Index width : {1, 3, 4, 7, 8, 15, 16, 17, 33, 65}) {
    Matrix<T> x(3, width, 1);  // NaN in the gaps
    for (Index i = 0; i < width; ++i) {
      x.at(0, i) = i % 2 == 0 ? Limits::max() : Limits::lowest();
      x.at(1, i) = Limits::denorm_min();
    }
    this->for_each_target([&](const Kernels<T>& by, bool) {
      EXPECT_TRUE(all_finite<T>(by, x, 3, width)) << width;
      EXPECT_TRUE(all_finite<T>(by, x, 0, width)) << width;
      for (const T bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
        for (Index n = 0; n < 3 * width; ++n) {
          Matrix<T> one = x;
          one.at(n / width, n % width) = bad;
          EXPECT_FALSE(all_finite<T>(by, one, 3, width)) << width << " " << n << " " << bad;
        }
      }
    });
  }
}

TYPED_TEST(Dense, LongProductsStop) {
  using T = TypeParam;
  const Matrix<T> x(2, 300, 1);
  const Matrix<T> w(300, 5, 2);
  Matrix<T> y(2, 5, 3);
  const std::atomic<bool> stop = true;
  this->for_each_target([&](const Kernels<T>& by, bool) {
    EXPECT_THROW(add_product<T>(by, x, 2, 300, w, 5, y, core::StopPoint(&stop, "test")), Cancelled);
  });
}

}  // namespace
}  // namespace qkv::dense
