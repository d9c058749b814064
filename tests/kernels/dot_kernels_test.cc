// SPDX-License-Identifier: Apache-2.0
#include "kernels/dot_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/soft_cap.h>

#include "reference/sum.h"
#include "tests/kernels/targets.h"
#include "tests/support/in_blocks.h"

// Compares kernels of each target that this CPU runs with plain loops: bit-identical where the
// order of summation is defined, within a bound where a polynomial replaces exp.
namespace qkv::kernels {
namespace {

template <class T>
class Kernels : public testing::Test {
 protected:
  // Calls f(kernels, whether they use fused multiply-adds) for each target.
  template <class F>
  static void for_each_target(const F& f) {
    for_each_supported([&](Target target) { f(dot_kernels<T>(target), target != Target::kSse4); });
  }
  static T multiply_add(bool fused, T a, T b, T c) { return fused ? std::fma(a, b, c) : a * b + c; }
};
TYPED_TEST_SUITE(Kernels, SumTypes);

constexpr Index kWidths[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 48, 64, 65, 80, 100, 129};

// The numbers have many magnitudes, and their counts are and are not multiples of the loop's step.
// soft_cap() is called with `slopes`, which it multiplies by the derivative, and without.
TYPED_TEST(Kernels, SoftCapsAreThoseOfDetailCapped) {
  using T = TypeParam;
  constexpr T kSpecial[] = {T(0),
                            T(-0.0),
                            std::numeric_limits<T>::denorm_min(),
                            -std::numeric_limits<T>::min(),
                            std::numeric_limits<T>::infinity(),
                            -std::numeric_limits<T>::infinity(),
                            std::numeric_limits<T>::quiet_NaN(),
                            std::numeric_limits<T>::max()};
  const auto same = [](T a, T b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  };
  this->for_each_target([&](const DotKernels<T>& k, bool) {
    for (const Index n : {16, 64, 128, 144, 512}) {
      for (const double cap : {1e-300, 1e-40, 0.3, 5.3, 30.0, 1e30}) {
        std::vector<T> s = random_values<T>(n, 5);
        for (std::size_t x = 0; x < s.size(); ++x) {
          s[x] *= static_cast<T>(std::pow(10, static_cast<double>(x % 13) - 6)) *
                  static_cast<T>(std::min(cap, 100.0));
          if (x % 11 == 3) s[x] = kSpecial[x / 11 % std::size(kSpecial)];
        }
        const std::vector<T> before = s;
        std::vector<T> capped = s;
        std::vector<T> slopes(s.size(), T(0.7));
        k.soft_cap(s.data(), slopes.data(), static_cast<T>(cap), n);
        k.soft_cap(capped.data(), nullptr, static_cast<T>(cap), n);
        for (std::size_t x = 0; x < s.size(); ++x) {
          const auto want = detail::capped(before[x], static_cast<T>(cap));
          ASSERT_TRUE(same(s[x], want.value)) << before[x] << " capped at " << cap;
          ASSERT_TRUE(same(capped[x], want.value)) << before[x] << " capped at " << cap;
          ASSERT_TRUE(same(slopes[x], T(0.7) * (T(1) - want.tanh * want.tanh))) << before[x];
        }
      }
    }
  });
}

TYPED_TEST(Kernels, ScoresAreSumsOverBlocksOfAscendingChannels) {
  using T = TypeParam;
  this->for_each_target([&](const DotKernels<T>& k, bool fused) {
    std::vector<Index> widths(std::begin(kWidths), std::end(kWidths));
    for (const Index D : {127, 128, 192, 200}) widths.push_back(D);
    for (const Index D : widths) {
      for (const Index keys : {1, 4, 15, 16, 63, 64}) {
        const Index stride = D + 3;
        const std::vector<T> rows = random_values<T>(kPanel * stride, 1);
        constexpr Index kMostRows = 13;
        const std::vector<T> q = random_values<T>(kMostRows * D, 2);
        std::vector<T> panel(at(kPanel * D), T(9));
        k.pack_panel(RowsOf<const T>{rows.data(), stride}, keys, D, panel.data());
        for (const Index count : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
          std::vector<T> s(at(kMostRows * 70), T(7));
          k.scores({q.data(), D}, count, D, panel.data(), T(0.3), {s.data(), 70});
          std::vector<T> some(s.size(), T(7));
          k.scores_of_keys({q.data(), D}, count, D, panel.data(), keys, T(0.3), {some.data(), 70});
          for (std::size_t x = 0; x < some.size(); ++x) {
            const bool is_behind_keys = static_cast<Index>(x % 70) >= keys;
            ASSERT_TRUE(some[x] == s[x] || (is_behind_keys && some[x] == T(7))) << D << " " << x;
          }
          for (Index r = 0; r < kMostRows; ++r) {
            for (Index n = 0; n < kPanel; ++n) {
              const T sum = test::sum_in_blocks<T>(D, [&](Index c, T so_far) {
                const T key = n < keys ? rows[at(n * stride + c)] : T(0);
                const T value = q[at(r * D + c)];
                return this->multiply_add(fused, value, key, so_far);
              });
              const T want = r < count ? sum * T(0.3) : T(7);  // later rows are not written
              ASSERT_EQ(s[at(r * 70 + n)], want) << D << " " << r << " " << n;
            }
          }
        }
      }
    }
  });
}

TYPED_TEST(Kernels, WeightedSumsAreOneChainOverAscendingKeys) {
  using T = TypeParam;
  this->for_each_target([&](const DotKernels<T>& k, bool fused) {
    for (const Index E : kWidths) {
      for (const Index rows : {1, 2, 5, 6, 7, 8, 13}) {
        constexpr Index kKeys = 37;
        const std::vector<T> w = random_values<T>(rows * kKeys, 3);
        const std::vector<T> v = random_values<T>(kKeys * E, 4);  // no padding behind the last row
        const std::vector<T> start = random_values<T>(rows * (E + 2), 5);
        std::vector<T> acc = start;
        k.weighted_sum({w.data(), kKeys}, rows, {v.data(), E}, kKeys, E, {acc.data(), E + 2});
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < E + 2; ++c) {
            T sum = start[at(r * (E + 2) + c)];
            for (Index n = 0; n < kKeys && c < E; ++n) {
              sum = this->multiply_add(fused, w[at(r * kKeys + n)], v[at(n * E + c)], sum);
            }
            ASSERT_EQ(acc[at(r * (E + 2) + c)], sum) << E << " " << c;
          }
        }
      }
    }
  });
}

TYPED_TEST(Kernels, ProductsAreSummedFromZeroAndAdded) {
  using T = TypeParam;
  this->for_each_target([&](const DotKernels<T>& k, bool fused) {
    for (const Index columns : kWidths) {
      for (const Index rows : {1, 2, 5, 6}) {
        constexpr Index kTerms = 37;
        const std::vector<T> x = random_values<T>(rows * kTerms, 3);
        const std::vector<T> w = random_values<T>(kTerms * columns, 4);
        const std::vector<T> start = random_values<T>(rows * (columns + 2), 5);
        std::vector<T> y = start;
        k.add_product({x.data(), kTerms}, rows, {w.data(), columns}, kTerms, columns,
                      {y.data(), columns + 2});
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < columns + 2; ++c) {
            T sum(0);
            for (Index n = 0; n < kTerms && c < columns; ++n) {
              sum = this->multiply_add(fused, x[at(r * kTerms + n)], w[at(n * columns + c)], sum);
            }
            const std::size_t place = at(r * (columns + 2) + c);
            ASSERT_EQ(y[place], c < columns ? start[place] + sum : start[place])
                << columns << " " << c;
          }
        }
      }
    }
  });
}

// The relative error of exp(x), x = s - max, is at most (1.5 + |x| / 8) epsilon in float32, or (1.5
// + |x| / 1.5) epsilon without fused multiply-adds; in float64 it is at most 1.5 epsilon. These are
// the bounds in exp-inl.h, with a margin.
TYPED_TEST(Kernels, ExponentialsAreWithinTheirBound) {
  using T = TypeParam;
  constexpr T kEpsilon = std::numeric_limits<T>::epsilon();
  const T lowest = sizeof(T) == 4 ? T(-87) : T(-708);
  this->for_each_target([&](const DotKernels<T>& k, bool fused) {
    std::vector<T> s(1 << 16);
    for (std::size_t n = 0; n < s.size(); ++n) {
      s[n] = lowest * static_cast<T>(n) / static_cast<T>(s.size());
    }
    std::vector<T> w(s.size());
    constexpr T kLeast = core::kNormalExponent<T>;
    k.weights(s.data(), static_cast<Index>(s.size()), kLeast, T(0), T(1), w.data());
    for (std::size_t n = 0; n < s.size(); ++n) {
      const auto exact = static_cast<double>(std::exp(static_cast<long double>(s[n])));
      const double error = std::fabs(static_cast<double>(w[n]) - exact) / exact;
      const double growth = sizeof(T) == 8 ? 0 : fused ? 1.0 / 8 : 1 / 1.5;
      ASSERT_LE(error, static_cast<double>(kEpsilon) * (1.5 - static_cast<double>(s[n]) * growth))
          << s[n];
    }
    EXPECT_EQ(w[0], T(1));
    const std::vector<T> special{-std::numeric_limits<T>::infinity(), lowest - 1, -T(1e30),
                                 std::numeric_limits<T>::quiet_NaN(), T(0)};
    std::vector<T> out(special.size());
    k.weights(special.data(), 5, kLeast, T(0), T(1), out.data());
    EXPECT_EQ(out[0], T(0));
    EXPECT_EQ(out[1], T(0));
    EXPECT_EQ(out[2], T(0));
    EXPECT_TRUE(std::isnan(out[3]));
    EXPECT_EQ(out[4], T(1));
  });
}

// Weights are added to columns and cells in the order of rows. A row's entropy sums -w ln w in 64
// partial sums, by key mod 64, which are added as a tree.
TYPED_TEST(Kernels, WeightsAreAddedInTheFixedOrder) {
  using T = TypeParam;
  constexpr Index kStride = 528;
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const std::vector<T> values = random_values<T>(kTileRows * kStride, 7);
  this->for_each_target([&](const DotKernels<T>& k, bool fused) {
    for (const Index n : {64, 448, 512}) {
      for (const Index count : {1, 2, static_cast<int>(kTileRows)}) {
        std::vector<T> s(values);
        for (T& x : s) x *= 5;
        s[3] = kMasked;
        std::vector<SummedRow<T>> rows;
        std::vector<T> columns(at(n), T(0.5));
        std::vector<T> cells(at(n), T(2));
        std::vector<T> entropy(kTileRows, T(-1));
        std::vector<T> want_columns(columns);
        std::vector<T> want_cells(cells);
        std::vector<T> w(at(n));
        for (Index r = 0; r < count; ++r) {
          rows.push_back({s.data() + r * kStride, T(20), T(3) + static_cast<T>(r), T(1.5)});
          k.weights(rows.back().s, n, core::kLeastExponent<T>, rows.back().max, rows.back().sum,
                    w.data());
          T partial[kPanel] = {};
          for (std::size_t x = 0; x < w.size(); ++x) {
            want_columns[x] += w[x];
            want_cells[x] += w[x];
            if (rows.back().s[x] == kMasked) continue;
            const T log = T(1.5) - (rows.back().s[x] - T(20));
            partial[x % kPanel] = this->multiply_add(fused, w[x], log, partial[x % kPanel]);
          }
          const T want = reference::tree_sum(partial);
          k.sum_weights(&rows.back(), 1, n, {w.data(), nullptr, entropy.data() + r});
          EXPECT_EQ(entropy[at(r)], want) << "row " << r << " alone";
        }
        const std::vector<T> alone(entropy);
        k.sum_weights(rows.data(), count, n, {columns.data(), cells.data(), entropy.data()});
        EXPECT_EQ(columns, want_columns) << n << " keys, " << count << " rows";
        EXPECT_EQ(cells, want_cells) << n << " keys, " << count << " rows";
        EXPECT_EQ(entropy, alone) << n << " keys, " << count << " rows";
        std::fill(columns.begin(), columns.end(), T(0.5));
        k.sum_weights(rows.data(), count, n, {columns.data(), nullptr, nullptr});
        EXPECT_EQ(columns, want_columns);
      }
    }
  });
}

// A row's exponentials are summed in 64 partial sums by key mod 64, which are added as the tree of
// reference/sum.h.
TYPED_TEST(Kernels, SoftmaxSumsInTheFixedOrder) {
  using T = TypeParam;
  this->for_each_target([&](const DotKernels<T>& k, bool) {
    for (const Index n : {64, 128, 448, 512}) {
      constexpr Index kStride = 528;
      std::vector<T> s(at(3 * kStride));
      const std::vector<T> values = random_values<T>(3 * kStride, 6);
      for (std::size_t x = 0; x < s.size(); ++x) s[x] = 5 * values[x];
      s[3] = -std::numeric_limits<T>::infinity();
      s[kStride + 7] = std::numeric_limits<T>::quiet_NaN();
      std::fill_n(s.data() + 2 * kStride, kStride, -std::numeric_limits<T>::infinity());
      T largest = s[0];
      for (Index x = 0; x < n; ++x) largest = std::max(largest, s[at(x)]);
      T max[3];
      T sum[3];
      k.softmax({s.data(), kStride}, 3, n, core::kLeastExponent<T>, max, sum);
      EXPECT_EQ(max[0], largest);
      T partial[kPanel] = {};
      for (Index x = 0; x < n; ++x) partial[x % kPanel] += s[at(x)];
      EXPECT_EQ(sum[0], reference::tree_sum(partial));
      EXPECT_EQ(s[3], T(0));
      EXPECT_TRUE(std::isnan(sum[1]));
      EXPECT_EQ(max[2], -std::numeric_limits<T>::infinity());
      EXPECT_EQ(sum[2], T(0));
      for (Index x = 0; x < n; ++x) ASSERT_EQ(s[at(2 * kStride + x)], T(0));
    }
  });
}

TYPED_TEST(Kernels, DropoutZeroesTheWeightsThatTheMaskDrops) {
  using T = TypeParam;
  this->for_each_target([&](const DotKernels<T>& k, bool) {
    for (const double p : {0.0001, 0.3, 0.999}) {
      const core::DropoutMask mask(p, 0x123456789ABCDEF0U);
      for (const Index j0 : {Index{0}, Index{64}, Index{1} << 33}) {
        std::vector<T> w(192, T(2));
        k.drop(w.data(), mask.row(3, 2, 70000), j0, 192);
        for (Index n = 0; n < 192; ++n) {
          const bool kept = mask.kept(3, 2, 70000, (j0 + n) / 4)[at(n % 4)];
          ASSERT_EQ(w[at(n)], kept ? T(2) : T(0)) << p << " " << n;
        }
      }
    }
  });
}

TYPED_TEST(Kernels, FindNaNAmongNumbersAndInfinities) {
  using T = TypeParam;
  this->for_each_target([&](const DotKernels<T>& k, bool) {
    std::vector<T> x(48, std::numeric_limits<T>::infinity());
    EXPECT_FALSE(k.has_nan(x.data(), 48));
    for (std::size_t n = 0; n < x.size(); ++n) {
      std::vector<T> y = x;
      y[n] = std::numeric_limits<T>::quiet_NaN();
      EXPECT_TRUE(k.has_nan(y.data(), 48)) << n;
    }
  });
}

// A CPU that runs a target of kTargets also runs the later ones.
TEST(Targets, BestFirst) {
  for (std::size_t n = 1; n < kTargets.size(); ++n) {
    if (kTargets[n] == Target::kEmulatedAmx) continue;  // last, as only tests ask for it
    EXPECT_TRUE(!is_supported(kTargets[n - 1]) || is_supported(kTargets[n]));
  }
}

}  // namespace
}  // namespace qkv::kernels
