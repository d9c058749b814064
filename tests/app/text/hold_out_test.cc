// SPDX-License-Identifier: Apache-2.0
#include "text/hold_out.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace qkv::app {
namespace {

using Pairs = std::vector<PairOfTexts>;

// Pairs in which each source has one to three targets. There are fewer targets than sources, so
// that many sources share a target.
Pairs tangle(std::uint32_t sources) {
  Pairs pairs;
  for (std::uint32_t source = 0; source < sources; ++source) {
    for (std::uint32_t n = 0; n <= source % 3; ++n) {
      pairs.push_back({source, (source * 7 + n * 31) % (2 * sources / 3)});
    }
  }
  return pairs;
}

std::set<std::uint32_t> sources_in(const Pairs& pairs, const Parts& parts, Part part) {
  std::set<std::uint32_t> sources;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    if (parts.of_pairs[n] == part) sources.insert(pairs[n].source);
  }
  return sources;
}

TEST(HoldOut, PartsShareNoText) {
  const Pairs pairs = tangle(300);
  const Parts parts = divided(pairs, {.test = 30, .valid = 20, .seed = 4});
  std::map<std::uint32_t, std::set<Part>> of_sources;
  std::map<std::uint32_t, std::set<Part>> of_targets;
  int dropped = 0;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    if (parts.of_pairs[n] == Part::kDropped) {
      ++dropped;
      continue;
    }
    of_sources[pairs[n].source].insert(parts.of_pairs[n]);
    of_targets[pairs[n].target].insert(parts.of_pairs[n]);
  }
  for (const auto* side : {&of_sources, &of_targets}) {
    for (const auto& [text, its_parts] : *side) EXPECT_EQ(its_parts.size(), 1U) << text;
  }
  EXPECT_GT(dropped, 10);
}

TEST(HoldOut, HeldSourcesHaveAllTheirPairs) {
  const Pairs pairs = tangle(300);
  const Parts parts = divided(pairs, {.test = 30, .valid = 20, .seed = 4});
  for (const auto& [part, count] : {std::pair{Part::kTest, 30U}, std::pair{Part::kValid, 20U}}) {
    const auto held = sources_in(pairs, parts, part);
    EXPECT_EQ(held.size(), count);
    for (std::size_t n = 0; n < pairs.size(); ++n) {
      EXPECT_EQ(parts.of_pairs[n] == part, held.contains(pairs[n].source)) << n;
    }
  }
}

// Every dropped pair has the target of a test or validation pair.
TEST(HoldOut, DroppedPairsTouchWhatIsHeld) {
  const Pairs pairs = tangle(300);
  const Parts parts = divided(pairs, {.test = 30, .valid = 20, .seed = 4});
  std::set<std::uint32_t> held;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    if (parts.of_pairs[n] == Part::kTest || parts.of_pairs[n] == Part::kValid) {
      held.insert(pairs[n].target);
    }
  }
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    if (parts.of_pairs[n] != Part::kDropped) continue;
    EXPECT_TRUE(held.contains(pairs[n].target)) << n;
  }
}

// The sources drawn by a seed are pinned: files that were split once must be split the same way
// again.
TEST(HoldOut, IsAFunctionOfTheSeed) {
  Pairs pairs;
  for (std::uint32_t n = 0; n < 1000; ++n) pairs.push_back({n, n});
  const auto drawn = [&](const HoldOut& wanted) {
    return sources_in(pairs, divided(pairs, wanted), Part::kTest);
  };
  EXPECT_EQ(drawn({.test = 5, .seed = 1}), (std::set<std::uint32_t>{157, 749, 750, 822, 962}));
  EXPECT_NE(drawn({.test = 5, .seed = 2}), drawn({.test = 5, .seed = 1}));
  EXPECT_NE(drawn({.test = 5, .seed = 1 + (1ULL << 32)}), drawn({.test = 5, .seed = 1}));
  for (const std::uint32_t source : drawn({.test = 5, .seed = 1})) {
    EXPECT_TRUE(drawn({.test = 50, .valid = 9, .seed = 1}).contains(source));
  }
}

TEST(HoldOut, SourcesAreEquallyLikely) {
  Pairs pairs;
  for (std::uint32_t n = 0; n < 10; ++n) pairs.push_back({n, n});
  int counts[10] = {};
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    for (const std::uint32_t source :
         sources_in(pairs, divided(pairs, {.test = 3, .seed = seed}), Part::kTest)) {
      ++counts[source];
    }
  }
  for (const int count : counts) EXPECT_NEAR(count, 3000, 230);  // five standard deviations
}

TEST(HoldOut, SaysHowManyItFound) {
  // All sources share one target, so that the test set leaves none for validation or training.
  const Pairs star{{0, 0}, {1, 0}, {2, 0}};
  const Parts parts = divided(star, {.test = 1, .valid = 1, .seed = 0});
  EXPECT_EQ(parts.test, 1);
  EXPECT_EQ(parts.valid, 0);
  EXPECT_EQ(std::ranges::count(parts.of_pairs, Part::kDropped), 2);
  EXPECT_EQ(divided(star, {.test = 9, .seed = 0}).test, 3);
  EXPECT_EQ(divided({}, {.test = 1, .seed = 0}).test, 0);
}

}  // namespace
}  // namespace qkv::app
