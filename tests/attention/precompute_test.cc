// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "core/tile_classes.h"
#include "tests/attention/bits.h"

// The table of a precomputed mask agrees with the mask, and calls give equal results with either.
namespace qkv::test {
namespace {

using core::TileClass;
using core::tiles_of;

// The class of the 64 x 64 tile that begins at `first`, found by calling the mask for each pair.
template <class F>
TileClass class_by_pairs(const F& f, At first, Index Tq, Index Tk) {
  bool some = false;
  bool all = true;
  for (std::int32_t i = first.i; i < std::min<Index>(first.i + 64, Tq); ++i) {
    for (std::int32_t j = first.j; j < std::min<Index>(first.j + 64, Tk); ++j) {
      const bool may = f(At{first.b, first.h, i, j});
      some = some || may;
      all = all && may;
    }
  }
  return !some ? TileClass::kDead : all ? TileClass::kFull : TileClass::kPartial;
}

struct Sizes {
  Index Tq, Tk, B, H;
};

// Compares every tile of a call with 3 batch entries and 4 heads; counts the classes.
template <class F>
std::array<int, 3> expect_classes(const F& f, const Sizes& sizes) {
  const MaskMod mask = precompute(mask_mod(f), sizes.Tq, sizes.Tk, sizes.B, sizes.H);
  std::array<int, 3> seen{};
  for (std::int32_t b = 0; b < 3; ++b) {
    for (std::int32_t h = 0; h < 4; ++h) {
      for (std::int32_t ti = 0; ti < tiles_of(sizes.Tq); ++ti) {
        for (std::int32_t tj = 0; tj < tiles_of(sizes.Tk); ++tj) {
          const TileClass got = mask.classes->of(b, h, ti, tj);
          EXPECT_EQ(got, class_by_pairs(f, {b, h, ti * 64, tj * 64}, sizes.Tq, sizes.Tk))
              << b << " " << h << " " << ti << " " << tj;
          ++seen[static_cast<std::size_t>(got)];
        }
      }
    }
  }
  return seen;
}

TEST(Precompute, KnowsEveryTile) {
  const auto causal = [](At at) { return at.j <= at.i; };
  const auto seen = expect_classes(causal, {200, 300, 1, 1});
  for (int count : seen) EXPECT_GT(count, 0);
  const auto heads = [](At at) { return at.h == 0 || at.j <= at.i * at.h; };
  expect_classes(heads, {130, 64, 1, 4});
  const auto entries = [](At at) { return at.j / 70 == at.b; };
  expect_classes(entries, {65, 256, 3, 1});
  const auto both = [](At at) { return at.j % 4 == at.h && at.i > 10 * at.b; };
  expect_classes(both, {64, 63, 3, 4});
}

TEST(Precompute, TakesAByteForEachTile) {
  const MaskMod all = mask_mod([](At) { return true; });
  EXPECT_EQ(precompute(all, 128, 129, 2, 3).classes->classes.size(), 2U * 3U * 2U * 3U);
  EXPECT_EQ(precompute(all, 0, 10).classes->classes.size(), 0U);
  EXPECT_EQ(precompute(all, 10, 10, 0).classes->classes.size(), 0U);
  constexpr Index kMany = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(precompute(all, 0, 10, kMany, kMany).classes->classes.size(), 0U);  // takes no time
  EXPECT_EQ(all.classes, nullptr);
}

// The results of a call with this mask: out, lse, dq, dk, dv.
std::vector<Tensor> results_with(const MaskMod& mask, DType d) {
  const Tensor q = normal({2, 4, 150, 8}, 1, d);
  const Tensor k = normal({2, 2, 170, 8}, 2, d);
  const Tensor v = normal({2, 2, 170, 8}, 3, d);
  const Tensor dout = normal({2, 4, 150, 8}, 4, d);
  const DType sums = d == DType::kFloat64 ? d : DType::kFloat32;
  std::vector<Tensor> x;
  x.emplace_back(d, q.shape());
  x.emplace_back(sums, Dims{2, 4, 150});
  for (const Tensor* input : {&q, &k, &v}) x.emplace_back(d, input->shape());
  const Options options{.masks = {mask}};
  attention({q, k, v}, options, {.out = x[0], .lse = x[1]});
  attention_backward({q, k, v}, options, {x[0], x[1]}, {.out = dout},
                     {.q = x[2], .k = x[3], .v = x[4]});
  return x;
}

TEST(Precompute, ChangesNoResult) {
  std::vector<int> document(170);
  for (std::size_t n = 0; n < document.size(); ++n) document[n] = static_cast<int>(n / 45);
  const MaskMod same = mask_mod([p = document.data()](At at) { return p[at.i] == p[at.j]; });
  const MaskMod heads = mask_mod([](At at) { return at.j <= at.i + 20 * at.h + 3 * at.b; });
  const std::pair<MaskMod, MaskMod> pairs[] = {{same, precompute(same, 150, 170)},
                                               {same, precompute(same, 150, 170, 2, 1)},
                                               {heads, precompute(heads, 150, 170, 2, 4)}};
  for (DType d : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const auto& [plain, precomputed] : pairs) {
      const auto want = results_with(plain, d);
      const auto got = results_with(precomputed, d);
      for (std::size_t n = 0; n < want.size(); ++n) EXPECT_TRUE(same_bits(got[n], want[n])) << n;
    }
  }
}

}  // namespace
}  // namespace qkv::test
