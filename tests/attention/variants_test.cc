// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/alternatives.h>
#include <qkv/options.h>
#include <qkv/outputs.h>

#include "core/masks.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/case.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"

// Tests that two generators draw every alternative of qkv/alternatives.h and request every result:
// random calls, which compare the fast paths with the reference, and the oracle's cases, which
// compare the reference with the oracle. An alternative or result that one of them lacks fails
// here.
namespace qkv::test {
namespace {

using Names = std::set<std::string_view>;

struct Drawn {
  Names scores, masks, diagonals, row_maps, results;

  void add(const Options& options) {
    if (options.qk_norm) row_maps.insert(QkNorm::kName);
    if (options.rotary) row_maps.insert(Rotary::kName);
    scores.insert(name_of(options.score));
    for (const Mask& mask : options.masks) masks.insert(name_of(mask));
    diagonals.insert(name_of(options.diagonal));
  }
  void add(const Outputs& outputs) {
    for_each_buffer(outputs, [&](std::string_view name, const View& buffer) {
      if (buffer.given()) results.insert(name);
    });
  }
};

template <class Variant>
void expect_all(const Names& drawn, const char* generator) {
  for (const std::string_view name : names_of<Variant>()) {
    EXPECT_TRUE(drawn.contains(name)) << name << " is not drawn by " << generator;
  }
}

void expect_all(const Drawn& drawn, const char* generator) {
  expect_all<Score>(drawn.scores, generator);
  expect_all<Mask>(drawn.masks, generator);
  expect_all<Diagonal>(drawn.diagonals, generator);
}

void expect_both_row_maps(const Drawn& drawn) {
  EXPECT_EQ(drawn.row_maps, (Names{QkNorm::kName, Rotary::kName}));
}

void expect_all_results(const Drawn& drawn, const char* generator) {
  for_each_buffer({}, [&](std::string_view name, const View&) {
    EXPECT_TRUE(drawn.results.contains(name)) << name << " is not requested by " << generator;
  });
}

TEST(Variants, NamesDiffer) {
  const auto expect_different = [](const auto& names) {
    EXPECT_EQ(Names(names.begin(), names.end()).size(), names.size());
  };
  expect_different(names_of<Score>());
  expect_different(names_of<Mask>());
  expect_different(names_of<Diagonal>());
}

TEST(Variants, RandomCallsDrawEach) {
  Drawn drawn;
  for (std::uint64_t n = 0; n < 400; ++n) drawn.add(RandomCall(1, n).options());
  expect_all(drawn, "tests/attention/random_*.cc");
}

TEST(Variants, RandomCallsOfRowMapsDrawEach) {
  Drawn drawn;
  for (std::uint64_t n = 0; n < 60; ++n) {
    drawn.add(RandomBackward(21, n, RandomCall::Draw::kMaps).call().options);
  }
  expect_both_row_maps(drawn);
}

// A result of qkv::kResults that none of the random calls requests is not compared with the
// reference.
TEST(Variants, RandomCallsRequestEachResult) {
  Drawn drawn;
  for (std::uint64_t n = 0; n < 60; ++n) {
    const RandomCall call(1, n);
    drawn.add(Results(call, 0).outputs());
  }
  expect_all_results(drawn, "tests/attention/random_call.cc");
}

TEST(Variants, TheOracleDrawsEach) {
  Drawn drawn;
  for (const Case& c : read_cases(QKV_ORACLE_CASES)) {
    const CaseCall call(c, DType::kFloat64);
    drawn.add(call.options());
    std::map<std::string, Tensor> results;
    drawn.add(ask_for(c, call, results));
  }
  expect_all(drawn, "tests/oracle_cases.py");
  expect_all_results(drawn, "tests/oracle_call.py and tests/attention/case.cc");
  expect_both_row_maps(drawn);
}

// The kinds of scores that tests iterate over have a path besides the reference.
TEST(Variants, EachKindOfScoreHasAFastPath) {
  if (fast_paths().empty()) GTEST_SKIP() << "this processor runs the reference alone";
  for (const ScoreKind kind : kScoreKinds) EXPECT_FALSE(fast_paths(kind).empty()) << name_of(kind);
}

// Expects that what is found for whole rows, blocks of keys and tiles agrees with allows() for each
// key.
template <core::AnyMask M>
void expect_consistent(const M& mask) {
  core::Problem p;
  p.batch = Dims(1);
  const std::vector<core::ResolvedMask> masks{mask};
  p.masks = masks;
  constexpr Index kKeys = 200;
  for (const Index o : {Index{-70}, Index{0}, Index{3}, Index{500}}) {
    for (const Index i : {Index{0}, Index{1}, Index{64}, Index{130}}) {
      const core::QueryAt at{0, 0, i, o};
      const core::KeyRange range = core::live_range(p, at, kKeys);
      std::uint8_t allowed[kKeys];
      core::find_allowed(p, detail::InstanceTarget::kBaseline, at, 0, kKeys, allowed);
      for (Index j = 0; j < kKeys; ++j) {
        const bool live = j >= range.begin && j < range.end && allowed[j] != 0;
        EXPECT_EQ(live, core::allows(mask, p, at, j)) << "i " << i << ", j " << j << ", o " << o;
        const core::TileClass known = core::tile_class(p, at, j / core::kTileSide);
        EXPECT_FALSE(known == core::TileClass::kDead && live);
        EXPECT_FALSE(known == core::TileClass::kFull && allowed[j] == 0);
      }
    }
  }
}

// A mask that has a rule for single keys only.
struct EveryThird {};
bool allows(const EveryThird&, const core::Problem&, const core::QueryAt& at, Index j) {
  return (at.i - j) % 3 == 0;
}
static_assert(core::AskedMask<EveryThird>);
static_assert(core::IntervalMask<core::CausalMask>);

struct NoMask {};
static_assert(!core::AnyMask<NoMask>);

TEST(Variants, MasksAreConsistent) {
  const core::Problem none;
  EXPECT_TRUE(allows(EveryThird{}, none, {0, 0, 4, 0}, 1));
  EXPECT_FALSE(allows(EveryThird{}, none, {0, 0, 4, 0}, 2));
  expect_consistent(core::CausalMask{});
  for (const Window& window : {Window{-1, -1}, Window{5, -1}, Window{-1, 0}, Window{64, 3}}) {
    expect_consistent(core::WindowMask{window});
  }
  const std::int64_t length = 77;
  expect_consistent(core::LengthMask{{&length, DType::kInt64, {}, 0, 0, 0}, 0});
  std::uint8_t flags[200];
  for (std::size_t j = 0; j < 200; ++j) flags[j] = static_cast<std::uint8_t>(j % 7 == 0 ? 0 : 3);
  core::Operand keys{flags, DType::kUInt8, {}, 0, 0, 1};
  expect_consistent(core::PaddingMask{keys, 0});
  keys.batch_strides.push_back(0);
  expect_consistent(core::KeepMask{keys});
  const MaskMod mod = mask_mod([](At at) { return at.i / 70 == at.j / 70; });
  expect_consistent(core::UserMask{.mod = &mod});
  const MaskMod known = precompute(mod, 200, 200);
  expect_consistent(core::UserMask{.mod = &known, .classes = known.classes.get()});
  // Ranges of keys of 131 queries: `wider` has more than the mask's keys, `ranges` has only these.
  core::RowRanges wider{.Tq = 131}, ranges{.Tq = 131, .exact = true};
  for (std::int32_t i = 0; i < 131; ++i) {
    const std::int32_t first = i / 70 * 70;
    wider.bounds.insert(wider.bounds.end(), {std::max(first - 20, 0), first + 90});
    ranges.bounds.insert(ranges.bounds.end(), {first, first + 70});
  }
  expect_consistent(core::UserMask{.mod = &mod, .ranges = &wider});
  expect_consistent(core::UserMask{.mod = &mod, .ranges = &ranges});
  expect_consistent(core::UserMask{.ranges = &ranges});
}

}  // namespace
}  // namespace qkv::test
