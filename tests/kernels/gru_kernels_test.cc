// SPDX-License-Identifier: Apache-2.0
#include "kernels/gru_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/gru.h"
#include "tests/kernels/targets.h"

namespace qkv::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
class GruKernelsOf : public testing::Test {
 protected:
  template <class F>
  static void for_each_target(const F& f) {
    for_each_supported([&](Target target) { f(gru_kernels<T>(target)); });
  }
};
TYPED_TEST_SUITE(GruKernelsOf, SumTypes);

TYPED_TEST(GruKernelsOf, EachTargetAgreesWithTheFormula) {
  using T = TypeParam;
  this->for_each_target([](const GruKernels<T>& kernels) {
    const double ulp = std::numeric_limits<T>::epsilon();
    for (const Index H : {1, 3, 16, 37}) {
      for (const double deviation : {1e-4, 1.0, 10.0, 1000.0}) {
        // xs [3H], hs [3H], h [H] and dnext [H]. By the deviation, most numbers are small, near 1
        // in size, saturate the gates, or overflow exponentials.
        const std::vector<T> x = random_values<T>(8 * H, static_cast<unsigned>(H), deviation);
        const T* const h = x.data() + 6 * H;
        std::vector<T> next(static_cast<std::size_t>(H)), gates(static_cast<std::size_t>(4 * H));
        kernels.forward(x.data(), x.data() + 3 * H, h, H, next.data(), gates.data());
        std::vector<T> in_place(h, h + H);
        kernels.forward(x.data(), x.data() + 3 * H, in_place.data(), H, in_place.data(), nullptr);
        EXPECT_EQ(next, in_place);

        // Expected results come from the formula in float64.
        const std::vector<double> exact(x.begin(), x.end());
        std::vector<double> want(static_cast<std::size_t>(H)), want_gates(gates.size());
        reference::gru_forward(exact.data(), exact.data() + 3 * H, exact.data() + 6 * H, H,
                               want.data(), want_gates.data());
        const std::string where =
            "H " + std::to_string(H) + " deviation " + std::to_string(deviation);
        // With the deviation d, sums have errors of about d ulp, and gates have derivatives of at
        // most 1. r, which has such an error, is multiplied by a number of size d.
        const double bound = 8 * ulp * (1 + deviation * deviation);
        for (std::size_t u = 0; u < next.size(); ++u) {
          EXPECT_NEAR(next[u], want[u], bound * (1 + std::fabs(exact[6 * next.size() + u])))
              << where;
        }
        for (std::size_t n = 0; n < 3 * next.size(); ++n) {
          EXPECT_NEAR(gates[n], want_gates[n], std::min(bound, 2.0)) << where;
          EXPECT_LE(std::fabs(gates[n]), T(1)) << where;
        }

        std::vector<T> dgates(gates.size()), dh(next.size());
        kernels.backward(gates.data(), h, x.data() + 7 * H, H, dgates.data(), dh.data());
        const std::vector<double> same_gates(gates.begin(), gates.end());
        std::vector<double> want_dgates(gates.size()), want_dh(next.size());
        reference::gru_backward(same_gates.data(), exact.data() + 6 * H, exact.data() + 7 * H, H,
                                want_dgates.data(), want_dh.data());
        // The kernel and the formula multiply equal numbers, so errors are relative, plus about an
        // ulp of `size` where 1 - z or 1 - n^2 cancels.
        const double size = deviation * (1 + deviation) * (1 + deviation);
        for (std::size_t n = 0; n < dgates.size(); ++n) {
          EXPECT_NEAR(dgates[n], want_dgates[n], 16 * ulp * (std::fabs(want_dgates[n]) + size))
              << where;
        }
        for (std::size_t u = 0; u < dh.size(); ++u) {
          EXPECT_NEAR(dh[u], want_dh[u], ulp * std::fabs(want_dh[u])) << where;
        }
      }
    }
  });
}

// The state, r and z are 0, so the next state is tanh of the last H numbers of xs.
TYPED_TEST(GruKernelsOf, SmallNumbersKeepTheirDigits) {
  using T = TypeParam;
  const double ulp = std::numeric_limits<T>::epsilon();
  std::vector<T> values{T(0), -T(0)};
  for (double x = 20; x > std::numeric_limits<T>::min(); x *= 0.83) {
    values.push_back(static_cast<T>(x));
    values.push_back(static_cast<T>(-x));
  }
  const std::size_t H = values.size();
  std::vector<T> xs(3 * H, T(-1e4)), hs(3 * H), h(H), next(H);
  std::copy(values.begin(), values.end(), xs.begin() + 2 * static_cast<std::ptrdiff_t>(H));
  this->for_each_target([&](const GruKernels<T>& kernels) {
    kernels.forward(xs.data(), hs.data(), h.data(), static_cast<Index>(H), next.data(), nullptr);
    for (std::size_t n = 0; n < H; ++n) {
      // Below 0.05, the kernels for float and double compute a Taylor polynomial.
      const double bound = std::fabs(values[n]) < T(0.05) ? ulp : (sizeof(T) == 4 ? 4 : 16) * ulp;
      const double want = std::tanh(static_cast<double>(values[n]));
      EXPECT_NEAR(next[n], want, bound * std::fabs(want)) << values[n];
    }
  });
}

TYPED_TEST(GruKernelsOf, InfinitiesSaturateAndNanStays) {
  using T = TypeParam;
  this->for_each_target([](const GruKernels<T>& kernels) {
    for (const Index H : {1, 16}) {
      const auto next_state = [&](double r, double z, double n, double h) {
        std::vector<T> xs(static_cast<std::size_t>(3 * H)), hs(xs.size());
        std::vector<T> state(static_cast<std::size_t>(H), static_cast<T>(h));
        std::fill_n(xs.begin(), H, static_cast<T>(r));
        std::fill_n(xs.begin() + H, H, static_cast<T>(z));
        std::fill_n(xs.begin() + 2 * H, H, static_cast<T>(n));
        kernels.forward(xs.data(), hs.data(), state.data(), H, state.data(), nullptr);
        return state.back();
      };
      EXPECT_EQ(next_state(0, kInfinity, 0.5, 0.25), T(0.25));
      EXPECT_EQ(next_state(0, -kInfinity, kInfinity, 0.25), T(1));
      EXPECT_EQ(next_state(0, -kInfinity, -kInfinity, 0.25), -T(1));
      EXPECT_TRUE(std::isnan(next_state(std::nan(""), 0, 0, 0)));
      EXPECT_TRUE(std::isnan(next_state(0, std::nan(""), 0.5, 0.25)));
      EXPECT_TRUE(std::isnan(next_state(0, 0, std::nan(""), 0)));
      EXPECT_TRUE(std::isnan(next_state(0, 0, 0, std::nan(""))));
    }
  });
}

}  // namespace
}  // namespace qkv::kernels
