// SPDX-License-Identifier: Apache-2.0
#include "ranks/unordered_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "tests/ranks/thread_ranks.h"

namespace qkv::ranks {
namespace {

using test::ThreadRanks;

__extension__ using Wide = __int128;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

double sum_of(const std::vector<double>& terms) {
  UnorderedSums sums(1);
  for (const double term : terms) sums.add(0, term);
  return sums[0];
}

TEST(UnorderedSums, AreExactWithinTheirDigits) {
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({1, -0.0}), 1);
  EXPECT_EQ(sum_of({1e20, 1, -1e20}), 1);
  EXPECT_EQ(sum_of({0.1, 0.2, -0.3}), 0x1p-55);
  EXPECT_EQ(sum_of({kSmallest, kSmallest, kSmallest}), 3 * kSmallest);
  EXPECT_EQ(sum_of({-kSmallest, 0, 0}), -kSmallest);
  EXPECT_EQ(sum_of({kLargest, kLargest, -kLargest}), kLargest);
  EXPECT_EQ(sum_of({-kLargest, -kLargest, kLargest}), -kLargest);
  EXPECT_EQ(sum_of({kLargest, kLargest}), kInfinity);
  for (const double x : {kLargest, 1.0, -3e-39, std::numeric_limits<double>::min(), kSmallest}) {
    EXPECT_EQ(sum_of({x}), x);
    EXPECT_EQ(sum_of({x, -x, -x}), -x);
  }
}

TEST(UnorderedSums, KeepInfinityAndNan) {
  EXPECT_EQ(sum_of({1, kInfinity, -kLargest}), kInfinity);
  EXPECT_EQ(sum_of({1, -kInfinity}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, 1, -kInfinity})));
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  const double nan = std::bit_cast<double>(0xFFF8000000001234);
  EXPECT_EQ(bits(sum_of({nan, kInfinity})), bits(std::nan("")));
  EXPECT_EQ(bits(sum_of({std::nan(""), nan})), bits(std::nan("")));
}

// The terms are integers times 2^power: an integer of 128 bits holds their sum over 2^power.
TEST(UnorderedSums, AreThoseOfIntegers) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const int power = static_cast<int>(random() % 300) - 150;
    std::vector<double> terms;
    Wide want = 0;
    for (int n = 0; n < 300; ++n) {
      const int places = static_cast<int>(random() % 30);
      const auto integer = static_cast<std::int64_t>(random() >> 11) - (std::int64_t{1} << 52);
      terms.push_back(std::ldexp(static_cast<double>(integer), places + power));
      want += static_cast<Wide>(integer) * (static_cast<Wide>(1) << places);
    }
    const double nearest = std::ldexp(static_cast<double>(want), power);
    EXPECT_LE(std::abs(sum_of(terms) - nearest), std::abs(nearest) * 0x1p-52);
  }
}

// The terms have factors of 1 to 2^299, so that some lie below the digits that the sum keeps.
TEST(UnorderedSums, AreTheSameInAnyOrder) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    const int span = 1 + static_cast<int>(random() % 300);
    std::vector<double> terms;
    for (int n = 0; n < 100; ++n) {
      const double mantissa = static_cast<double>(random() >> 11) - 0x1p52;
      terms.push_back(
          std::ldexp(mantissa, static_cast<int>(random() % static_cast<unsigned>(span))));
    }
    const double sum = sum_of(terms);
    const double largest =
        std::abs(*std::ranges::max_element(terms, {}, [](double x) { return std::abs(x); }));
    EXPECT_LE(std::abs(sum - std::accumulate(terms.begin(), terms.end(), 0.0L)), largest * 1e-13L);
    for (int shuffle = 0; shuffle < 5; ++shuffle) {
      std::ranges::shuffle(terms, random);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(sum_of(terms)), std::bit_cast<std::uint64_t>(sum));
    }
  }
}

TEST(UnorderedSums, AddArraysAndRanks) {
  for (int count = 1; count <= 5; ++count) {
    ThreadRanks::run(count, {.most_delay_us = 20}, [&](Ranks& ranks) {
      const int rank = ranks.rank();
      Tensor terms(DType::kFloat32, {2, 2});
      for (float& value : terms.values<float>()) value = rank == 0 ? 1e30F : 1;
      UnorderedSums sums(4);
      sums.add(terms);
      const std::vector<Index> last{3};
      if (rank == 0) sums.add(2, kInfinity);
      sums.add_ranks(ranks);
      sums.add(0, -1e30F);
      Tensor one(DType::kFloat16, {1});
      one.values<Float16>()[0] = Float16(1.0F);
      sums.add(last, one);
      EXPECT_EQ(sums[0], count - 1);
      EXPECT_EQ(sums[1], double{1e30F});
      EXPECT_EQ(sums[2], kInfinity);
      sums.add(3, -1e30F);
      EXPECT_EQ(sums[3], count);
    });
  }
}

}  // namespace
}  // namespace qkv::ranks
