// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <bitset>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "core/shapes.h"
#include "core/storage.h"

namespace qkv::core {
namespace {

using Random = std::mt19937_64;
using Bytes = std::bitset<1 << 16>;

// Memory that views point to. Tests that use it never read or write its bytes.
alignas(64) std::uint8_t arena[1 << 16];

Index between(Random& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

struct Touched {
  Bytes bytes;
  bool twice = false;  // whether a byte belongs to two elements
};

// Finds the bytes of all elements by brute force.
Touched touched_by(const ConstView& view) {
  Touched result;
  const auto size = static_cast<Index>(size_of(view.dtype()));
  const Index begin = static_cast<const std::uint8_t*>(view.data()) - arena;
  for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& offset, const Dims&) {
    for (Index byte = 0; byte < size; ++byte) {
      const auto index = static_cast<std::size_t>(begin + offset[0] * size + byte);
      result.twice = result.twice || result.bytes.test(index);
      result.bytes.set(index);
    }
  });
  return result;
}

std::string text_of(const ConstView& view) {
  return describe(view) + " strides " + to_string(view.strides()) + " at byte " +
         std::to_string(static_cast<const std::uint8_t*>(view.data()) - arena);
}

// Returns a view with strides of any kind: overlapping, zero, negative, uneven.
ConstView wild_view(Random& random) {
  constexpr DType kTypes[] = {DType::kInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64};
  Dims shape;
  Dims strides;
  for (Index axis = between(random, 0, 3); axis > 0; --axis) {
    shape.push_back(between(random, 0, 40) == 0 ? 0 : between(random, 1, 4));
    strides.push_back(between(random, -12, 12));
  }
  const DType dtype = kTypes[between(random, 0, 3)];
  // A view's pointer must be aligned for its elements, so the offset is rounded down to a multiple
  // of their size (a power of two).
  const Index anywhere = between(random, -40, 40);
  const Index place = anywhere & -static_cast<Index>(size_of(dtype));
  return {arena + (1 << 15) + place, dtype, shape, strides};
}

// Returns a slice of the array [4,5,6] at the start of the arena, with its axes in one of two
// orders.
ConstView slice_view(Random& random) {
  ConstView view = ConstView(reinterpret_cast<const float*>(arena), {4, 5, 6});
  for (int axis = 0; axis < 3; ++axis) {
    const Index step = between(random, 1, 3);
    const Index start = between(random, 0, view.size(axis) - 1);
    const Index stop = between(random, start + 1, view.size(axis));
    view = slice(view, axis, start, stop, step);
    if (between(random, 0, 3) == 0) view = slice(view, axis, view.size(axis) - 1, -1, -1);
  }
  return permute(view, between(random, 0, 1) == 0 ? Dims(2, 0, 1) : Dims(0, 1, 2));
}

struct Tally {
  int pairs = 0;
  int overlapping = 0;
  int conservative = 0;  // reported as overlapping although disjoint

  // The fraction of the disjoint pairs that are reported as overlapping.
  double conservative_share() const {
    return static_cast<double>(conservative) / (pairs - overlapping);
  }
};

template <class MakeView>
Tally compare_with_brute_force(std::uint64_t seed, int pairs, const MakeView& make) {
  Random random(seed);
  Tally tally;
  for (; tally.pairs < pairs; ++tally.pairs) {
    const ConstView a = make(random);
    const ConstView b = make(random);
    const bool overlap = (touched_by(a).bytes & touched_by(b).bytes).any();
    const bool may = may_overlap(a, b);
    EXPECT_EQ(may, may_overlap(b, a)) << text_of(a) << " and " << text_of(b);
    EXPECT_TRUE(may || !overlap) << text_of(a) << " and " << text_of(b) << ", seed " << seed
                                 << ", pair " << tally.pairs;
    tally.overlapping += overlap;
    tally.conservative += may && !overlap;
  }
  return tally;
}

void report(std::string_view kind, const Tally& tally) {
  std::cout << kind << ": " << tally.pairs << " pairs, " << tally.overlapping << " overlap, "
            << tally.conservative << " of the disjoint ones (" << 100 * tally.conservative_share()
            << " %) not proved disjoint\n";
}

TEST(MayOverlap, IsNeverFalseForWildViewsThatOverlap) {
  const Tally tally = compare_with_brute_force(1, 20000, wild_view);
  report("wild", tally);
  EXPECT_GT(tally.overlapping, 2000);
  EXPECT_GT(tally.pairs - tally.overlapping, 2000);
}

TEST(MayOverlap, ProvesMostSlicesOfOneArrayDisjoint) {
  const Tally tally = compare_with_brute_force(2, 20000, slice_view);
  report("slices", tally);
  EXPECT_GT(tally.overlapping, 1000);
  EXPECT_GT(tally.pairs - tally.overlapping, 2000);
  EXPECT_LT(tally.conservative_share(), 0.10);
}

TEST(MayOverlap, ProjectionsInOneBufferAreDisjoint) {
  for (const Index T : {1, 5}) {
    for (const Index B : {1, 3}) {
      Tensor buffer(DType::kFloat32, {B, T, 4, 2, 8});
      std::vector<View> parts;
      for (Index n = 0; n < 4; ++n) {
        const View part = reshape(slice(View(buffer), 2, n, n + 1), {B, T, 2, 8});
        parts.push_back(n % 2 == 0 ? part : permute(part, {0, 2, 1, 3}));
      }
      for (std::size_t a = 0; a < 4; ++a) {
        EXPECT_FALSE(self_overlaps(parts[a]));
        EXPECT_TRUE(may_overlap(parts[a], buffer));
        for (std::size_t b = 0; b < 4; ++b) EXPECT_EQ(may_overlap(parts[a], parts[b]), a == b);
      }
    }
  }
}

TEST(MayOverlap, BlocksOfAMatrix) {
  Tensor x(DType::kFloat64, {3, 8, 12});
  const auto block = [&](Index i0, Index i1, Index j0, Index j1) {
    return slice(slice(View(x), 1, i0, i1), 2, j0, j1);
  };
  EXPECT_FALSE(may_overlap(block(0, 4, 0, 8), block(4, 8, 4, 12)));
  EXPECT_FALSE(may_overlap(block(0, 4, 0, 8), block(0, 4, 8, 12)));
  EXPECT_TRUE(may_overlap(block(0, 5, 0, 8), block(4, 8, 4, 12)));
  EXPECT_TRUE(may_overlap(block(0, 4, 0, 9), block(0, 4, 8, 12)));
  // Modulo the stride of a row, column 11 is next to column 0, yet no element is in both blocks.
  EXPECT_FALSE(may_overlap(block(0, 8, 11, 12), block(0, 8, 0, 11)));
}

TEST(MayOverlap, EvenAndOddElements) {
  Tensor x(DType::kFloat32, {10});
  const View even = slice(View(x), 0, 0, 10, 2);
  const View odd = slice(View(x), 0, 9, -1, -2);
  EXPECT_FALSE(may_overlap(even, odd));
  EXPECT_TRUE(may_overlap(even, slice(View(x), 0, 8, -1, -2)));
}

TEST(MayOverlap, FieldsOfRecords) {
  // The elements have different sizes: records of 16 bytes with 4-byte and 8-byte fields.
  const ConstView first(arena, DType::kFloat32, {5}, {4});
  const ConstView second(arena + 4, DType::kFloat32, {5}, {4});
  const ConstView wide(arena + 8, DType::kFloat64, {5}, {2});
  EXPECT_FALSE(may_overlap(first, second));
  EXPECT_FALSE(may_overlap(second, wide));
  EXPECT_TRUE(may_overlap(second, ConstView(arena, DType::kFloat64, {5}, {2})));
}

TEST(MayOverlap, EmptyAndAbsentArraysShareNothing) {
  Tensor x(DType::kFloat32, {4, 4});
  EXPECT_FALSE(may_overlap(x, ConstView{}));
  EXPECT_FALSE(may_overlap(slice(View(x), 0, 1, 1), x));
  EXPECT_FALSE(self_overlaps(ConstView{}));
  EXPECT_FALSE(self_overlaps(ConstView(arena, DType::kInt8, {0, 5}, {0, 0})));
  EXPECT_TRUE(may_overlap(x, x));
}

TEST(SelfOverlaps, AgreesWithBruteForce) {
  Random random(3);
  int twice = 0;
  int conservative = 0;
  for (int n = 0; n < 20000; ++n) {
    const ConstView view = wild_view(random);
    const bool overlap = touched_by(view).twice;
    EXPECT_TRUE(self_overlaps(view) || !overlap) << text_of(view);
    twice += overlap;
    conservative += self_overlaps(view) && !overlap;
  }
  std::cout << "wild: " << twice << " of 20000 overlap themselves, " << conservative
            << " others not proved free of overlap\n";
  EXPECT_GT(twice, 2000);
  EXPECT_LT(conservative, 2000);
}

TEST(SelfOverlaps, NoSliceOfAnArrayDoes) {
  Random random(4);
  for (int n = 0; n < 2000; ++n) {
    const ConstView view = slice_view(random);
    EXPECT_FALSE(self_overlaps(view)) << text_of(view);
  }
  EXPECT_TRUE(self_overlaps(broadcast_to(ConstView(arena, {1, 3}), {2, 3})));
}

}  // namespace
}  // namespace qkv::core
