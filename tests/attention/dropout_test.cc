// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "core/philox.h"
#include "tests/attention/bits.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// Known answers that were published with the algorithm (Salmon et al. 2011, the kat_vectors of
// Random123).
TEST(Dropout, PhiloxKnownAnswers) {
  using Counter = std::array<std::uint32_t, 4>;
  EXPECT_EQ(core::philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(core::philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                {0xffffffff, 0xffffffff}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(core::philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                                {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The mask follows docs/semantics.md: key = the seed (low, high), counter = (floor(j/4), i, h, b),
// word j mod 4; the weight is dropped if word < floor(p 2^32).
TEST(Dropout, TheMaskIsThatOfTheSemantics) {
  constexpr std::uint64_t kSeed = 0x123456789abcdef0ULL;
  const Tensor q = normal({2, 3, 4, 2}, 1, DType::kFloat64);
  const Tensor k = normal({2, 3, 11, 2}, 2, DType::kFloat64);
  Tensor weights(DType::kFloat64, {2, 3, 4, 11});
  Tensor dropped(DType::kFloat64, {2, 3, 4, 11});
  attention({q, k}, {.dropout = {0.4, kSeed}},
            {.weights = View(weights), .dropped_weights = View(dropped)});
  const auto threshold = static_cast<std::uint64_t>(std::floor(0.4 * 4294967296.0));
  int kept = 0;
  for (std::uint32_t b = 0; b < 2; ++b) {
    for (std::uint32_t h = 0; h < 3; ++h) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        for (std::uint32_t j = 0; j < 11; ++j) {
          const auto words = core::philox4x32_10({j / 4, i, h, b}, {0x9abcdef0, 0x12345678});
          const double w = weights.view().at<double>({b, h, i, j});
          const bool keep = words[j % 4] >= threshold;
          kept += keep;
          EXPECT_DOUBLE_EQ(dropped.view().at<double>({b, h, i, j}), keep ? w / 0.6 : 0);
        }
      }
    }
  }
  // The call keeps about 158 of its 264 weights.
  EXPECT_GT(kept, 100);
  EXPECT_LT(kept, 250);
}

TEST(Dropout, DropsAboutPAndKeepsTheMean) {
  const Tensor q(DType::kFloat32, {64, 1});
  const Tensor k(DType::kFloat32, {1024, 1});
  Tensor dropped(DType::kFloat32, {64, 1024});
  attention({q, k}, {.dropout = {0.3, 1}}, {.dropped_weights = View(dropped)});
  double sum = 0;
  int zeros = 0;
  for (float w : dropped.values<float>()) {
    sum += static_cast<double>(w);
    zeros += w == 0;
  }
  const double n = 64 * 1024;
  EXPECT_NEAR(zeros / n, 0.3, 4 * std::sqrt(0.3 * 0.7 / n));
  EXPECT_NEAR(sum / 64, 1, 0.01);
}

TEST(Dropout, OfZeroNeedsNoSeedAndChangesNothing) {
  const Tensor x = normal({5, 3}, 1);
  Tensor a(DType::kFloat32, {5, 3});
  Tensor b(DType::kFloat32, {5, 3});
  attention({x, x, x}, {}, {.out = a});
  attention({x, x, x}, {.dropout = {0.0, 77}}, {.out = b});
  EXPECT_TRUE(same_bits(a, b));
}

TEST(Dropout, OutIsTheDroppedWeightsTimesTheValues) {
  const Tensor q = normal({6, 3}, 1, DType::kFloat64);
  const Tensor k = normal({9, 3}, 2, DType::kFloat64);
  const Tensor v = normal({9, 2}, 3, DType::kFloat64);
  Tensor out(DType::kFloat64, {6, 2});
  Tensor dropped(DType::kFloat64, {6, 9});
  attention({q, k, v}, {.dropout = {0.5, 4}}, {.out = out, .dropped_weights = View(dropped)});
  std::vector<double> want;
  for (Index i = 0; i < 6; ++i) {
    for (Index c = 0; c < 2; ++c) {
      double sum = 0;
      for (Index j = 0; j < 9; ++j) {
        sum += dropped.view().at<double>({i, j}) * v.view().at<double>({j, c});
      }
      want.push_back(sum);
    }
  }
  EXPECT_TRUE(compare("out", out, want, {1e-13, 1e-15}, "Dropout.OutIs..."));
}

}  // namespace
}  // namespace qkv::test
