// SPDX-License-Identifier: Apache-2.0
#include "expressions/known_keys.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/expression.h>

#include "core/masks.h"
#include "core/tile_classes.h"
#include "tests/support/scale.h"

// Compares the key ranges and tile classes that are found before a mask is evaluated with its value
// at every pair.
namespace qkv::test {
namespace {

constexpr Index kB = 2;
constexpr Index kH = 3;
constexpr Index kTq = 70;
constexpr Index kTk = 150;

core::Problem problem() {
  core::Problem p;
  p.B = kB;
  p.H = kH;
  p.Tq = kTq;
  p.Tk = kTk;
  return p;
}

struct Found {
  bool exact = false;
  bool tight = true;   // every range begins and ends with an allowed key
  Index narrowed = 0;  // rows whose range lacks a key
  std::array<int, 3> tiles{};
};

// Fails where an allowed key lies outside of its query's range, an exact range holds a forbidden
// one, or a tile is classified wrongly.
Found expect_consistent(const Expression& mask) {
  const core::Problem p = problem();
  const MaskMod mod = mask_mod(mask);
  const expressions::Program& program = mod.program->program;
  const auto ranges = expressions::solved_for_keys(program, p);
  const auto classes = expressions::classified_by_ranges(program, p);
  const core::UserMask asked{.mod = &mod};
  Found found{.exact = ranges != nullptr && ranges->exact};
  for (Index b = 0; b < kB; ++b) {
    for (Index h = 0; h < kH; ++h) {
      std::vector<std::uint8_t> allowed(static_cast<std::size_t>(kTq * kTk));
      const auto at = [&](Index i, Index j) { return static_cast<std::size_t>(i * kTk + j); };
      for (Index i = 0; i < kTq; ++i) {
        const core::QueryAt query{b, h, i, 0};
        std::uint8_t* const row = allowed.data() + at(i, 0);
        std::fill_n(row, kTk, std::uint8_t{1});
        core::ask(asked, p, query, 0, kTk, detail::InstanceTarget::kBaseline, row);
        if (ranges == nullptr) continue;
        const core::KeyRange range = ranges->of(query);
        EXPECT_TRUE(range.begin >= 0 && range.end <= kTk);
        found.narrowed += range.size() < kTk ? 1 : 0;
        for (Index j = 0; j < kTk; ++j) {
          const bool within = j >= range.begin && j < range.end;
          EXPECT_TRUE(row[j] == 0 || within) << mask.text() << " at " << i << " " << j;
          EXPECT_TRUE(!ranges->exact || (row[j] != 0) == within) << mask.text() << " " << i;
        }
        if (range.empty()) continue;
        found.tight = found.tight && row[range.begin] != 0 && row[range.end - 1] != 0;
      }
      for (Index tile_i = 0; classes != nullptr && tile_i < core::tiles_of(kTq); ++tile_i) {
        for (Index tile_j = 0; tile_j < core::tiles_of(kTk); ++tile_j) {
          const core::TileClass known = classes->of(b, h, tile_i, tile_j);
          ++found.tiles[static_cast<std::size_t>(known)];
          for (Index i = tile_i * 64; i < std::min(kTq, tile_i * 64 + 64); ++i) {
            for (Index j = tile_j * 64; j < std::min(kTk, tile_j * 64 + 64); ++j) {
              const bool may = allowed[at(i, j)] != 0;
              EXPECT_FALSE(known == core::TileClass::kDead && may) << mask.text();
              EXPECT_FALSE(known == core::TileClass::kFull && !may) << mask.text();
            }
          }
        }
      }
    }
  }
  return found;
}

struct Arrays {
  std::vector<std::int64_t> documents = std::vector<std::int64_t>(kTk);  // ascending
  std::vector<std::int32_t> falling = std::vector<std::int32_t>(kTk);
  std::vector<std::int64_t> unsorted = std::vector<std::int64_t>(kTk);
  std::vector<std::int64_t> by_entry = std::vector<std::int64_t>(kB * kTk);  // ascending for each b
  std::vector<std::int64_t> prefix{13, 90};
  std::array<bool, kTk> blocks{};

  Arrays() {
    for (std::size_t n = 0; n < documents.size(); ++n) {
      documents[n] = static_cast<std::int64_t>(n * n / 3000);
      falling[n] = 50 - static_cast<std::int32_t>(n / 7);
      unsorted[n] = static_cast<std::int64_t>(n * 37 % 11);
      blocks[n] = n / 64 == 1;
      by_entry[n] = documents[n];
      by_entry[n + documents.size()] = static_cast<std::int64_t>(n / 40);
    }
  }
};

TEST(KnownKeys, OfCommonMasksAreExact) {
  const Arrays arrays;
  const Symbols x;
  const Captured document(arrays.documents, "document"), falling(arrays.falling, "falling");
  const Captured prefix(arrays.prefix, "prefix");
  const Captured entry(ConstView(arrays.by_entry.data(), {kB, kTk}), "entry");
  const Expression causal = x.j <= x.i;
  const Expression masks[] = {
      causal,
      x.j <= x.i + (x.Tk - x.Tq),
      x.j < 100 && !(x.i < x.j),
      abs(x.i - x.j) <= 9,
      abs(x.j - x.i * 2) < x.h + 3,
      causal && x.i - x.j <= 16,
      x.i - x.j < 16 && x.j - x.i < 16,
      causal ||
          x.j<prefix(x.b),
              x.j<max(prefix(x.b), x.i), min(x.j, 2 * x.j - 5) < x.i, max(-x.j, x.j - 40) < x.i,
                  x.i / 16 == x.j / 16, x.j / 16 <= x.i / 16, x.j / 7 != 4 || x.i == 3,
                  document(x.i) == document(x.j), document(x.i) == document(x.j) && causal,
                  falling(x.i) <= falling(x.j), entry(x.b, x.i) == entry(x.b, x.j),
                  document(kTk - 1 - x.j) >= document(x.i), where(x.h == 1, causal, x.j > x.i),
                  x.h == 1, Expression(true), Expression(false), x.j*(x.h + 1) < x.i, -x.j + 20> -
                  x.i,
              x.j % 1000 < x.i, x.j % kTk <= x.i, x.j * -3>
                  x.i -
              50,
      x.i < x.j + x.j + 1,
      x.j < 20 || (x.j >= 20 && x.j <= x.i + 20),
      !(x.j < 30 && x.i > 3),
      !(x.j < 30 || x.j > x.i + 60),
  };
  for (const Expression& mask : masks) {
    const Found found = expect_consistent(mask);
    const bool is_gap = mask.text().find("!=") != std::string::npos;  // allows two ranges
    EXPECT_EQ(found.exact, !is_gap) << mask.text();
    EXPECT_TRUE(found.tight) << mask.text();
  }
}

TEST(KnownKeys, AreLimitedWhereAMaskHasGaps) {
  const Arrays arrays;
  const Symbols x;
  const Captured unsorted(arrays.unsorted, "unsorted");
  const Captured blocks(ConstView(arrays.blocks.data(), {kTk}), "blocks");
  // Ranges exclude keys; for keys within a range the mask must be evaluated.
  for (const Expression& mask :
       {(x.i - x.j) % 3 == 0 && x.j <= x.i, x.j < 5 || abs(x.i - x.j) < 4,
        unsorted(x.j) == 4 && x.j > x.i + 2, x.j % (kTk - 1) < x.i && x.j > 2}) {
    const Found found = expect_consistent(mask);
    EXPECT_FALSE(found.exact) << mask.text();
    EXPECT_GT(found.narrowed, 0) << mask.text();
  }
  // A tile is classified by the elements of the array that its pairs can read.
  const Found of_blocks = expect_consistent(blocks(x.j));
  EXPECT_FALSE(of_blocks.exact);
  EXPECT_GT(of_blocks.tiles[static_cast<std::size_t>(core::TileClass::kDead)], 0);
  EXPECT_GT(of_blocks.tiles[static_cast<std::size_t>(core::TileClass::kFull)], 0);
}

// One table lists the blocks that are wholly allowed, another those whose pairs are evaluated.
TEST(KnownKeys, OfTablesOfBlocksAreThoseOfTheTables) {
  constexpr std::array<bool, 6> kWhole{true, false, false, false, false, false};
  constexpr std::array<bool, 6> kAsked{false, true, false, false, false, true};
  const Symbols x;
  for (const Index block : {64, 128}) {
    const Captured whole(ConstView(kWhole.data(), {2, 3}), "whole");
    const Captured asked(ConstView(kAsked.data(), {2, 3}), "asked");
    const Expression i = x.i / block, j = x.j / block;
    const Found found = expect_consistent(whole(i, j) || (asked(i, j) && (x.i + x.j) % 2 == 0));
    const auto count = [&](core::TileClass tile) {
      return found.tiles[static_cast<std::size_t>(tile)] / static_cast<int>(kB * kH);
    };
    // The 2 x 3 tiles are 2 x 3 blocks of 64, or lie in 1 x 2 blocks of 128.
    EXPECT_EQ(count(core::TileClass::kFull), block == 64 ? 1 : 4);
    EXPECT_EQ(count(core::TileClass::kPartial), 2);
    EXPECT_EQ(count(core::TileClass::kDead), block == 64 ? 3 : 0);
  }
}

// An index is a place on a canvas of 16 x 16 in Morton order: its even bits are x, its odd bits y.
// A tile has 64 indices, a square of 8 x 8, so that a neighbourhood excludes whole tiles.
TEST(KnownKeys, OfMortonOrdersAreKnownByTheirUpperBits) {
  const auto bits = [](const Expression& n, int first) {
    Expression found = n / (1 << first) % 2;
    for (int bit = 1; bit < 4; ++bit) {
      found = found + n / (1 << (first + 2 * bit)) % 2 * (1 << bit);
    }
    return found;
  };
  const Symbols x;
  const auto near = [&](int reach) {
    return abs(bits(x.i, 0) - bits(x.j, 0)) <= reach && abs(bits(x.i, 1) - bits(x.j, 1)) <= reach;
  };
  // There are 2 x 3 tiles. The first queries have x 0..7 and y 0..7, the others x 8..11 and y 0..1.
  // Keys have x 0..7 and y 0..7, then x 8..15 and y 0..7, then x 0..7 and y 8..11.
  const auto count = [&](int reach, core::TileClass tile) {
    return expect_consistent(near(reach)).tiles[static_cast<std::size_t>(tile)] /
           static_cast<int>(kB * kH);
  };
  EXPECT_EQ(count(0, core::TileClass::kDead), 4);
  EXPECT_EQ(count(3, core::TileClass::kDead), 1);
  EXPECT_EQ(count(15, core::TileClass::kFull), 6);
  // Remainders must also be right for divisors that change with the key and for negative numbers.
  expect_consistent((x.i + 128) % (x.j % 3 + 64) < 64);
  expect_consistent((x.i - 100) % 64 < 30);
  expect_consistent((x.j - 200) % 64 + x.i / 64 * 40 < 30);
}

// No wrong range is found where sums wrap around, the least integer is negated, or a divisor is
// negative.
TEST(KnownKeys, OfSumsThatWrapAroundAreNotSolved) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> extremes{kLeast, 5};
  const Symbols x;
  const Captured from(extremes, "from");
  for (const Expression& mask :
       {x.j + (kMost - 20) > 0, x.j * 100'000'000 > x.i, abs(from(min(x.j, 1))) <= x.i,
        -from(min(x.j, 1)) < x.i, abs(x.j + kLeast) > x.i, x.i - from(min(x.j, 1)) < 3,
        x.j / -7 > -x.i}) {
    const Found found = expect_consistent(mask);
    EXPECT_FALSE(found.exact) << mask.text();
    EXPECT_EQ(found.narrowed, 0) << mask.text();
  }
}

// A part that many others use is solved once: solving it for each of 2^60 uses would never end.
TEST(KnownKeys, OfSharedPartsAreFoundOnce) {
  const Symbols x;
  Expression mask = x.j <= x.i;
  for (int n = 0; n < 60; ++n) mask = (mask && x.j < x.i + 3) || (mask && x.j > x.i - 5);
  expect_consistent(mask);
}

// ---- random masks ---------------------------------------------------------------------------

class DrawnMask {
 public:
  DrawnMask(unsigned seed, const Arrays& arrays)
      : bits_(seed),
        arrays_{Captured(arrays.documents, "document"), Captured(arrays.falling, "falling"),
                Captured(arrays.unsorted, "unsorted")} {}

  Expression truth(int depth) {
    switch (depth == 0 ? bits_() % 4 : bits_() % 9) {
      case 0:
        return integer(2) < integer(2);
      case 1:
        return integer(2) <= integer(2);
      case 2:
        return integer(2) == integer(2);
      case 3:
        return integer(2) != integer(2);
      case 4:
        return truth(depth - 1) && truth(depth - 1);
      case 5:
        return truth(depth - 1) || truth(depth - 1);
      case 6:
        return where(truth(depth - 1), truth(depth - 1), truth(depth - 1));
      case 7:
        return truth(depth - 1) == truth(depth - 1);
      default:
        return !truth(depth - 1);
    }
  }

 private:
  Expression integer(int depth) {
    const Expression symbols[] = {x_.j, x_.j, x_.i, x_.h, x_.b, x_.Tq, x_.Tk};
    if (depth == 0) {
      return bits_() % 4 == 0 ? Expression(static_cast<int>(bits_() % 120) - 30)
                              : symbols[bits_() % std::size(symbols)];
    }
    switch (bits_() % 11) {
      case 0:
        return integer(depth - 1) + integer(depth - 1);
      case 1:
        return integer(depth - 1) - integer(depth - 1);
      case 2:
        return integer(depth - 1) * (static_cast<int>(bits_() % 7) - 3);
      case 3:
        return integer(depth - 1) / (static_cast<int>(bits_() % 20) + 1);
      case 4:
        return integer(depth - 1) % (static_cast<int>(bits_() % 60) + 1);
      case 5:
        return min(integer(depth - 1), integer(depth - 1));
      case 6:
        return max(integer(depth - 1), integer(depth - 1));
      case 7:
        return abs(integer(depth - 1));
      case 8:
        return -integer(depth - 1);
      case 9:
        return arrays_[bits_() % arrays_.size()](
            min(max(integer(depth - 1), Expression(0)), Expression(static_cast<int>(kTk) - 1)));
      default:
        return where(truth(0), integer(depth - 1), integer(depth - 1));
    }
  }

  std::mt19937 bits_;
  const Symbols x_;
  const std::vector<Captured> arrays_;
};

TEST(KnownKeys, OfRandomMasksAreConsistent) {
  const Arrays arrays;
  int exact = 0;
  int narrowed = 0;
  std::array<int, 3> tiles{};
  const int count = at_scale(400);
  for (int seed = 0; seed < count; ++seed) {
    DrawnMask drawn(static_cast<unsigned>(seed), arrays);
    const Found found = expect_consistent(drawn.truth(seed % 4));
    exact += found.exact ? 1 : 0;
    narrowed += found.narrowed > 0 ? 1 : 0;
    for (std::size_t n = 0; n < tiles.size(); ++n) tiles[n] += found.tiles[n];
    if (HasFailure()) break;
  }
  EXPECT_GT(exact, count / 8);
  EXPECT_GT(narrowed, count / 8);
  for (const int one : tiles) EXPECT_GT(one, 0);
}

}  // namespace
}  // namespace qkv::test
