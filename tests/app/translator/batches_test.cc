// SPDX-License-Identifier: Apache-2.0
// Tests that batches hold every sentence pair once, keep the limit, have little padding and are
// reproducible.
#include "translator/data/batches.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using Batches = std::vector<std::vector<Index>>;
using test::complaint;

// Lengths of sources of 1 to 50 tokens, and of targets that are a little longer or shorter.
std::vector<PairLength> random_lengths(int count) {
  std::mt19937 random(7);
  std::vector<PairLength> lengths;
  for (int n = 0; n < count; ++n) {
    const Index source = 1 + static_cast<Index>(random() % 50);
    lengths.push_back({source, std::max<Index>(1, source + static_cast<Index>(random() % 9) - 4)});
  }
  return lengths;
}

// Returns a batch's number of tokens with padding, and adds its number without padding to `filled`.
Index padded(const std::vector<PairLength>& lengths, const std::vector<Index>& batch,
             Index& filled) {
  PairLength longest;
  for (const Index pair : batch) {
    const PairLength& length = lengths[static_cast<std::size_t>(pair)];
    longest.source = std::max(longest.source, length.source);
    longest.target = std::max(longest.target, length.target);
    filled += length.source + length.target;
  }
  return (longest.source + longest.target) * std::ssize(batch);
}

void expect_partition(const Batches& batches, Index count) {
  std::multiset<Index> pairs;
  for (const auto& batch : batches) pairs.insert(batch.begin(), batch.end());
  ASSERT_EQ(std::ssize(pairs), count);
  Index expected = 0;
  for (const Index pair : pairs) ASSERT_EQ(pair, expected++);
}

TEST(Batches, EachPairOnceWithinTheLimitWithLittlePadding) {
  const std::vector<PairLength> lengths = random_lengths(3000);
  for (const Index most : {64, 300, 4096}) {
    for (const Batches& batches :
         {epoch_batches(lengths, {most, 5}, 2), sorted_batches(lengths, most)}) {
      expect_partition(batches, 3000);
      Index all = 0;
      Index filled = 0;
      for (const auto& batch : batches) {
        const Index tokens = padded(lengths, batch, filled);
        all += tokens;
        EXPECT_TRUE(tokens <= most || batch.size() == 1) << tokens;
        EXPECT_FALSE(batch.empty());
      }
      // In batches of 4096 tokens without regard to length, half of the tokens would be padding.
      EXPECT_GT(static_cast<double>(filled), 0.9 * static_cast<double>(all)) << most;
    }
  }
}

TEST(Batches, ALongPairIsABatchOfItsOwn) {
  const std::vector<PairLength> lengths{{2, 2}, {90, 20}, {2, 3}, {100, 1}};
  const Batches want{{0, 2}, {3}, {1}};
  EXPECT_EQ(sorted_batches(lengths, 10), want);
  Batches drawn = epoch_batches(lengths, {10, 1}, 0);
  for (auto& batch : drawn) std::ranges::sort(batch);
  EXPECT_TRUE(std::ranges::is_permutation(drawn, want));
}

// A sentence pair that did not fit into one batch starts the next, which has only that pair's
// lengths at first.
TEST(Batches, EachBatchIsMeasuredByItsOwnPairs) {
  const std::vector<PairLength> lengths{{9, 1}, {1, 11}, {1, 11}};
  EXPECT_EQ(sorted_batches(lengths, 24), (Batches{{0}, {1, 2}}));
}

TEST(Batches, NothingGivesNothing) {
  EXPECT_TRUE(epoch_batches({}, {}, 0).empty());
  EXPECT_TRUE(sorted_batches({}, 1).empty());
}

TEST(Batches, SeedAndEpochDecide) {
  const std::vector<PairLength> lengths = random_lengths(500);
  const Batches first = epoch_batches(lengths, {300, 5}, 1);
  EXPECT_EQ(first, epoch_batches(lengths, {300, 5}, 1));
  // The epoch far + 1 and the seed `high` differ from 1 and 5 only in the upper 32 bits.
  const Index far = Index{1} << 32;
  const std::uint64_t high = (std::uint64_t{1} << 32) + 5;
  for (const Batches& other :
       {epoch_batches(lengths, {300, 5}, 2), epoch_batches(lengths, {300, 6}, 1),
        epoch_batches(lengths, {300, 5}, far + 1), epoch_batches(lengths, {300, high}, 1)}) {
    EXPECT_NE(first, other);
    const auto sizes = [](const Batches& batches) {
      std::multiset<std::size_t> all;
      for (const auto& batch : batches) all.insert(batch.size());
      return all;
    };
    // The order of batches and the sentence pairs in them change, but not the batches' sizes.
    EXPECT_EQ(sizes(first), sizes(other));
  }
}

// Every machine must draw these batches, which were computed from their definition with the Philox
// of tests/oracle_philox.py.
TEST(Batches, TheNumbersAreFixed) {
  const std::vector<PairLength> alike(10, PairLength{1, 1});
  EXPECT_EQ(epoch_batches(alike, {6, 42}, 3), (Batches{{6, 0, 3}, {9, 8, 1}, {2, 4, 7}, {5}}));
}

// Each of twelve sentence pairs of equal length should begin the first batch equally often.
TEST(Batches, NoPairIsPreferred) {
  const std::vector<PairLength> alike(12, PairLength{1, 1});
  std::vector<int> first(12);
  for (Index epoch = 0; epoch < 1200; ++epoch) {
    ++first[static_cast<std::size_t>(epoch_batches(alike, {6, 1}, epoch)[0][0])];
  }
  // The expected count is 100 with deviation 9.6; the bound is six deviations.
  for (const int count : first) EXPECT_NEAR(count, 100, 58);
}

TEST(Batches, WrongCalls) {
  EXPECT_EQ(complaint<Error>([] { epoch_batches({}, {.most_tokens = 0}, 0); }),
            "epoch_batches: most_tokens must be positive, got 0");
}

}  // namespace
}  // namespace qkv::app
