// SPDX-License-Identifier: Apache-2.0
#include "kernels/additive_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/targets.h"

// Tests the kernels of the additive score on each target that this CPU runs. Exponentials are
// exact up to a few roundings. Where several of their forms (small, whole, with separate powers)
// are valid, scores and gradients are bit-identical, so a tile may use any of these forms.
namespace qkv::kernels {
namespace {

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

template <class T>
class AdditiveKernelsOf : public testing::Test {
 protected:
  template <class F>
  static void for_each_target(const F& f) {
    for_each_supported([&](Target target) { f(additive_kernels<T>(target)); });
  }
};
TYPED_TEST_SUITE(AdditiveKernelsOf, SumTypes);

// Positive numbers in two forms: whole, and as part * 2^power.
template <class T>
struct Exponentials {
  std::vector<T> whole, part, power;

  void add(T x) {
    int exponent = 0;
    const T mantissa = std::frexp(x, &exponent);
    whole.push_back(x);
    part.push_back(mantissa);
    power.push_back(static_cast<T>(exponent));
  }
};

// Returns numbers of all magnitudes, whose products range from far below eps to infinity. The last
// bit of each mantissa is 1, the others vary.
template <class T>
Exponentials<T> sweep() {
  constexpr int kMost = sizeof(T) == 4 ? 124 : 1010;
  constexpr int kStep = sizeof(T) == 4 ? 1 : 12;
  constexpr int kBits = sizeof(T) == 4 ? 23 : 52;
  Exponentials<T> x;
  std::uint64_t bits = 1;
  for (int exponent = -kMost; exponent <= kMost; exponent += kStep) {
    for (int n = 0; n < 8; ++n) {
      bits = bits * 6364136223846793005U + 1442695040888963407U;
      const std::uint64_t mantissa = (bits >> 11 & ((std::uint64_t{1} << kBits) - 1)) | 1;
      x.add(std::ldexp(1 + std::ldexp(static_cast<T>(mantissa), -kBits), exponent));
    }
  }
  return x;
}

// Returns a panel [4][kPanel] of keys with two units: x of unit 0 and of unit 1, then their powers
// (zeros if `power` is empty). From index `from` on, cyclically, unit 0 takes each number, unit 1
// each 29th.
template <class T>
std::vector<T> panel_of(const std::vector<T>& x, const std::vector<T>& power, std::size_t from) {
  std::vector<T> panel;
  for (const std::vector<T>* numbers : {&x, &power}) {
    for (const std::size_t step : {1, 29}) {
      for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); ++n) {
        panel.push_back(numbers->empty() ? T(0) : (*numbers)[(from + n * step) % numbers->size()]);
      }
    }
  }
  return panel;
}

TYPED_TEST(AdditiveKernelsOf, AllFormsHaveTheSameBits) {
  using T = TypeParam;
  // Bound of a product of two small exponentials.
  const T kSmallProduct = std::exp(4 * kSmallBound<T>);
  const Exponentials<T> x = sweep<T>();
  const T v[] = {1, T(-0.375)};
  const AdditiveUnits<T> units{v, 2};
  this->for_each_target([&](const AdditiveKernels<T>& k) {
    std::size_t differ = 0;
    for (std::size_t j = 0; j < x.whole.size(); j += kPanel) {
      const std::vector<T> whole = panel_of(x.whole, {}, j);
      const std::vector<T> apart = panel_of(x.part, x.power, j);
      for (std::size_t i = 0; i < x.whole.size(); i += kTileRows) {
        T rows[2 * kTileRows];
        T rows_apart[4 * kTileRows];
        for (std::size_t r = 0; r < static_cast<std::size_t>(kTileRows); ++r) {
          for (const std::size_t u : {0, 1}) {
            const std::size_t at = (i + r + 41 * u) % x.whole.size();
            rows[2 * r + u] = x.whole[at];
            rows_apart[4 * r + u] = x.part[at];
            rows_apart[4 * r + 2 + u] = x.power[at];
          }
        }
        T s[kTileRows * kPanel];
        T s_apart[kTileRows * kPanel];
        T s_small[kTileRows * kPanel];
        k.scores_of_small({rows, 2}, kTileRows, whole.data(), kPanel, units, T(1),
                          {s_small, kPanel});
        k.scores({rows, 2}, kTileRows, whole.data(), kPanel, units, T(1), {s, kPanel});
        k.scores_with_powers({rows_apart, 4}, kTileRows, apart.data(), kPanel, units, T(1),
                             {s_apart, kPanel});
        for (Index n = 0; n < kTileRows * kPanel; ++n) {
          const T* row = rows + 2 * (n / kPanel);
          const T* key = whole.data() + n % kPanel;
          const T product = std::max(row[0] * key[0], row[1] * key[kPanel]);
          if (s[n] == s_apart[n] && (!(product < kSmallProduct) || s[n] == s_small[n])) continue;
          if (++differ > 3) continue;
          ADD_FAILURE() << row[0] << " and " << key[0] << ", " << row[1] << " and " << key[kPanel]
                        << ": " << s[n] << " whole, " << s_apart[n] << " apart, " << s_small[n]
                        << " small";
        }
      }
    }
    EXPECT_EQ(differ, 0U);
  });
}

// Returns the PairSums of a tile of kTileRows queries and 16 keys: left, weights and right, one
// after another. The exponentials, in this form, are the numbers of x from index i on for queries,
// from index j on for keys.
template <class T>
std::vector<T> gradients(const AdditiveKernels<T>& k, const Exponentials<T>& x,
                         ExponentialForm form, std::size_t i, std::size_t j) {
  constexpr Index kRows = kTileRows;
  constexpr Index kKeys = 16;
  const auto column = [&](const std::vector<T>& from, std::size_t first, Index rows) {
    std::vector<T> to;
    for (std::size_t n = 0; n < static_cast<std::size_t>(rows * kUnitLanes); ++n) {
      to.push_back(from[(first + n) % from.size()]);
    }
    return to;
  };
  const bool apart = form == ExponentialForm::kPowers;
  const auto left = column(apart ? x.part : x.whole, i, kRows);
  const auto left_power = column(x.power, i, kRows);
  const auto right = column(apart ? x.part : x.whole, j, kKeys);
  const auto right_power = column(x.power, j, kKeys);
  std::vector<T> ds;
  for (Index n = 0; n < kRows * kKeys; ++n) ds.push_back(static_cast<T>(n % 7) - T(2.6));
  std::vector<T> to(static_cast<std::size_t>((2 * kRows + kKeys) * kUnitLanes));
  k.add_pairs(form, {left.data(), left_power.data()}, kRows, {right.data(), right_power.data()},
              kKeys, {ds.data(), kKeys},
              {to.data(), to.data() + kRows * kUnitLanes, to.data() + 2 * kRows * kUnitLanes});
  return to;
}

TYPED_TEST(AdditiveKernelsOf, AllFormsHaveTheSameGradients) {
  using T = TypeParam;
  const Exponentials<T> all = sweep<T>();
  const T most = std::exp(2 * kSmallBound<T>);
  Exponentials<T> small;
  for (const T x : all.whole) {
    if (x <= most && x >= 1 / most) small.add(x);
  }
  this->for_each_target([&](const AdditiveKernels<T>& k) {
    const auto check = [&](const Exponentials<T>& x, ExponentialForm form) {
      for (std::size_t i = 0; i < x.whole.size(); i += kTileRows * kUnitLanes) {
        for (std::size_t j = 1; j < x.whole.size(); j += 37) {  // pairs of all kinds, not all pairs
          ASSERT_EQ(gradients(k, x, form, i, j), gradients(k, x, ExponentialForm::kPowers, i, j))
              << i << ", " << j;
        }
      }
    };
    check(all, ExponentialForm::kWhole);
    check(small, ExponentialForm::kSmall);
  });
}

// The score of a query and a key is accurate even where their numbers nearly cancel, whether their
// exponentials are whole or have separate powers.
TYPED_TEST(AdditiveKernelsOf, ScoresAreAccurateWhereRowsCancel) {
  using T = TypeParam;
  constexpr double kEps = std::numeric_limits<T>::epsilon();
  const T whole = kPlainBound<T>;
  std::vector<T> a;
  for (const T size : {T(0.3), T(20), whole - 1, whole, std::nextafter(whole, 2 * whole), whole + 1,
                       whole + 2, whole + 5, whole + 9, 2 * whole, 10 * whole, T(1e5), T(3e6)}) {
    a.push_back(size);
    a.push_back(-size);
  }
  const auto rows = static_cast<Index>(a.size());
  this->for_each_target([&](const AdditiveKernels<T>& k) {
    for (Index i = 0; i < rows; ++i) {
      constexpr auto kKeys = static_cast<std::size_t>(kPanel);
      const T row = a[static_cast<std::size_t>(i)];
      // In unit 0, keys are around -row, where |tanh| is below 1. In unit 1, whose v is 0, they are
      // equal, but the query's number is -row.
      std::vector<T> b(2 * kKeys);
      for (std::size_t n = 0; n < kKeys; ++n) {
        b[n] = b[kKeys + n] = -row + (static_cast<T>(n) - 32) / 3;
      }
      const T of_units[] = {row, -row};
      T left[4];
      k.exponentials(of_units, 2, left, left + 2);
      std::vector<T> panel(4 * kKeys);
      k.exponentials(b.data(), 2 * kPanel, panel.data(), panel.data() + 2 * kPanel);
      const T v[] = {1, 0};
      const AdditiveUnits<T> units{v, 2};
      T s[kPanel];
      k.scores_with_powers({left, 4}, 1, panel.data(), kPanel, units, T(1), {s, kPanel});
      for (std::size_t n = 0; n < kKeys; ++n) {
        const long double sum = static_cast<long double>(row) + static_cast<long double>(b[n]);
        const auto want = static_cast<double>(std::tanh(sum));
        EXPECT_NEAR(s[n], want, 8 * kEps) << row << " and " << b[n];
      }
    }
  });
}

// Compares log2(x 2^power) with 2a log2(e) in long double, whose 64 bits are precise enough for |a|
// below 2^20.
TYPED_TEST(AdditiveKernelsOf, ExponentialsAreExact) {
  using T = TypeParam;
  constexpr double kEps = std::numeric_limits<T>::epsilon();
  const long double log2e = std::log2(std::exp(1.0L));
  std::vector<T> a{0};
  for (T size = T(1e-6); size < T(1 << 10); size *= T(1.0007)) {
    a.push_back(size);
    a.push_back(-size);
  }
  if (sizeof(T) == 4) {
    for (T size = T(1 << 10); size < T(1 << 20); size *= T(1.003)) {
      a.push_back(size);
      a.push_back(-size);
    }
  }
  this->for_each_target([&](const AdditiveKernels<T>& k) {
    for (std::size_t n = 0; n < a.size(); n += 37) {  // 37 numbers are no whole registers
      const auto count = std::min<std::size_t>(37, a.size() - n);
      std::vector<T> x(count), power(count);
      const ExponentialForm form =
          k.exponentials(&a[n], static_cast<Index>(count), x.data(), power.data());
      ExponentialForm highest = ExponentialForm::kSmall;
      for (std::size_t m = 0; m < count; ++m) {
        if (std::fabs(a[n + m]) > kSmallBound<T>)
          highest = std::max(highest, ExponentialForm::kWhole);
        if (power[m] != 0) highest = ExponentialForm::kPowers;
        EXPECT_EQ(power[m], std::round(power[m]));
        if (std::fabs(a[n + m]) <= kPlainBound<T>) {
          EXPECT_EQ(power[m], 0) << a[n + m];
        }
        const long double log = std::log2(static_cast<long double>(x[m])) + power[m];
        const long double want = 2 * log2e * a[n + m];
        EXPECT_LE(std::fabs(static_cast<double>((log - want) / log2e)), 3 * kEps) << a[n + m];
      }
      EXPECT_EQ(form, highest) << a[n];
    }
  });
}

// For infinities, NaN and huge numbers, too, a unit's term is tanh(a + b) times v.
TYPED_TEST(AdditiveKernelsOf, SpecialNumbersGiveTanhOfTheirSum) {
  using T = TypeParam;
  const T far = sizeof(T) == 4 ? T(1e30) : T(1e300);
  const T special[] = {kInf<T>, -kInf<T>, kNaN<T>, far, -far, T(50), T(-50), T(0.5), T(-400)};
  this->for_each_target([&](const AdditiveKernels<T>& k) {
    std::vector<T> panel(4 * kPanel);
    std::vector<T> b(2 * kPanel);  // two units
    for (std::size_t n = 0; n < b.size(); ++n) b[n] = special[n % std::size(special)];
    k.exponentials(b.data(), 2 * kPanel, panel.data(), panel.data() + 2 * kPanel);
    const T v[] = {1, T(0.25)};
    const AdditiveUnits<T> units{v, 2};
    for (const T a : special) {
      const T twice[] = {a, a};
      T left[4];
      k.exponentials(twice, 2, left, left + 2);
      T s[kPanel];
      k.scores_with_powers({left, 4}, 1, panel.data(), kPanel, units, T(1), {s, kPanel});
      for (std::size_t n = 0; n < static_cast<std::size_t>(kPanel); ++n) {
        const T want = std::tanh(a + b[n]) + std::tanh(a + b[n + kPanel]) / 4;
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(s[n])) << a << " and " << b[n] << ": " << s[n];
        } else {
          EXPECT_NEAR(s[n], want, 1e-6) << a << " and " << b[n];
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv::kernels
