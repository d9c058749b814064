// SPDX-License-Identifier: Apache-2.0
// Tests that the kernels of every target are bit-identical with plain loops, for any number of
// elements and of sets of gradients to sum.
#include "kernels/update_kernels.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/update.h"
#include "tests/kernels/targets.h"

namespace qkv::kernels {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 2, 15, 16, 17, 31, 63, 64, 100, 1000};

// Returns random numbers of both signs and many magnitudes.
template <class T>
std::vector<T> numbers(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> all(n);
  for (T& value : all) value = static_cast<T>(normal(random) * std::exp2(8 * normal(random)));
  return all;
}

// Returns random numbers, among them NaN, infinities, the largest and smallest numbers, and -0.
template <class T>
std::vector<T> extremes(std::size_t n, std::uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  const T some[] = {Limits::quiet_NaN(), Limits::infinity(),   -Limits::infinity(),
                    Limits::max(),       Limits::denorm_min(), T(-0.0)};
  std::vector<T> all = numbers<T>(n, seed);
  for (std::size_t i = 0; i < n; i += 3) all[i] = some[i / 3 % std::size(some)];
  return all;
}

// Whether two numbers are equal, signs of zeros included, or both NaN.
template <class T>
bool is_same(T a, T b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(is_same(got[i], want[i]))
        << where << " [" << i << "]: " << got[i] << ", not " << want[i];
  }
}

template <class T>
class UpdateKernelsOf : public testing::Test {
 protected:
  // Calls f(kernels, array) for each target and size, with ordinary and with extreme numbers.
  template <class F>
  static void for_each_array(const F& f) {
    for_each_supported([&](Target target) {
      for (const std::size_t n : kSizes) {
        f(update_kernels<T>(target), numbers<T>(n, 4));
        f(update_kernels<T>(target), extremes<T>(n, 5));
      }
    });
  }
};
TYPED_TEST_SUITE(UpdateKernelsOf, SumTypes);

TYPED_TEST(UpdateKernelsOf, AdamHasTheBitsOfThePlainLoop) {
  using T = TypeParam;
  const core::AdamFactors<T> f{.gradient = T(0.37),
                               .beta1 = T(0.9),
                               .beta2 = T(0.999),
                               .one_minus_beta1 = T(1 - 0.9),
                               .one_minus_beta2 = T(1 - 0.999),
                               .epsilon = T(1e-8),
                               .m_rate = T(0.003),
                               .v_factor = T(7.3),
                               .decay_factor = T(0.9999)};
  this->for_each_array([&](const UpdateKernels<T>& kernels, const std::vector<T>& gradient) {
    const std::size_t n = gradient.size();
    std::vector<T> m = numbers<T>(n, 1), v = numbers<T>(n, 2), w = numbers<T>(n, 3);
    for (T& value : v) value = std::fabs(value);
    std::vector<T> want_m = m, want_v = v, want_w = w;
    const auto size = static_cast<Index>(n);
    kernels.adam(f, gradient.data(), m.data(), v.data(), w.data(), size);
    reference::adam(f, gradient.data(), want_m.data(), want_v.data(), want_w.data(), size);
    const std::string where = "n " + std::to_string(n);
    expect_same(m, want_m, "m " + where);
    expect_same(v, want_v, "v " + where);
    expect_same(w, want_w, "w " + where);
  });
}

TYPED_TEST(UpdateKernelsOf, SquaresHaveTheBitsOfThePlainLoop) {
  using T = TypeParam;
  this->for_each_array([](const UpdateKernels<T>& kernels, const std::vector<T>& x) {
    const auto n = static_cast<Index>(x.size());
    const double got = kernels.squares(x.data(), n);
    const double want = reference::squares(x.data(), n);
    EXPECT_TRUE(is_same(got, want)) << "n " << n << ": " << got << ", not " << want;
  });
}

TEST(Squares, OfNoneOneAndLargeNumbers) {
  const float one[] = {3};
  EXPECT_EQ(reference::squares(one, 0), 0);
  EXPECT_EQ(reference::squares(one, 1), 9);
  // The square does not fit in float32.
  const float large[] = {1e30F};
  EXPECT_EQ(reference::squares(large, 1), double{1e30F} * double{1e30F});
}

// Sums elements [first, first + n) of all sets into sets[0] by the definition of the tree: on each
// level, set s + stride is added to set s.
template <class T>
void add_levels(std::vector<std::vector<T>>& sets, std::size_t first, std::size_t n) {
  for (std::size_t stride = 1; stride < sets.size(); stride *= 2) {
    for (std::size_t s = 0; s + stride < sets.size(); s += 2 * stride) {
      for (std::size_t i = first; i < first + n; ++i) sets[s][i] += sets[s + stride][i];
    }
  }
}

template <class T>
void compare_sums(const UpdateKernels<T>& kernels, std::size_t count, std::size_t n) {
  // Elements before and after the summed ones, which must not change.
  constexpr std::size_t kBefore = 3;
  constexpr std::size_t kAfter = 2;
  std::vector<std::vector<T>> sets;
  for (std::size_t s = 0; s < count; ++s) {
    sets.push_back(s % 5 == 4 ? extremes<T>(kBefore + n + kAfter, s)
                              : numbers<T>(kBefore + n + kAfter, s));
  }
  std::vector<std::vector<T>> want = sets;
  add_levels(want, kBefore, n);
  std::vector<T*> starts;
  for (std::vector<T>& set : sets) starts.push_back(set.data());
  kernels.sum_sets(starts.data(), static_cast<Index>(count), kBefore, static_cast<Index>(n));
  expect_same(sets[0], want[0], std::to_string(count) + " sets of " + std::to_string(n));
}

TYPED_TEST(UpdateKernelsOf, SumsOfSetsAreTheTree) {
  using T = TypeParam;
  const auto compare_all = [](const UpdateKernels<T>& kernels) {
    for (std::size_t count = 1; count <= 20; ++count) {
      for (const std::size_t n : {0, 1, 17, 100}) compare_sums(kernels, count, n);
    }
  };
  for_each_supported([&](Target target) { compare_all(update_kernels<T>(target)); });
  compare_all({nullptr, nullptr, &reference::sum_sets<T>});
}

}  // namespace
}  // namespace qkv::kernels
