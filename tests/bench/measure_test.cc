// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace {

using qkv::bench::Clock;
using qkv::bench::Ratio;
using qkv::bench::Series;
using qkv::bench::Subject;
using qkv::bench::Summary;

Series equal_on_both_clocks(const std::vector<double>& times) {
  Series series;
  for (const double time : times) series.push_back({time, time});
  return series;
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoMiddleValues) {
  EXPECT_EQ(qkv::bench::median_of({}), 0);
  EXPECT_EQ(qkv::bench::median_of({3}), 3);
  EXPECT_EQ(qkv::bench::median_of({9, 1, 4}), 4);
  EXPECT_EQ(qkv::bench::median_of({9, 1, 4, 2}), 3);
}

TEST(Summary, SpreadIsHowFarTheMedianRateIsBelowTheBest) {
  const Summary summary = qkv::bench::summarise(equal_on_both_clocks({2, 4, 5}), Clock::kWall);
  EXPECT_EQ(summary.n, 3);
  EXPECT_EQ(summary.best, 2);
  EXPECT_EQ(summary.median, 4);
  EXPECT_EQ(summary.spread, 0.5);  // (1/2 - 1/4) / (1/2)
  EXPECT_EQ(qkv::bench::summarise({}, Clock::kWall).n, 0);
}

TEST(Summary, TakesTheClockThatIsNamed) {
  const Series series = {{3, 1}, {5, 2}, {7, 6}};
  EXPECT_EQ(qkv::bench::summarise(series, Clock::kWall).median, 5);
  EXPECT_EQ(qkv::bench::summarise(series, Clock::kCpu).median, 2);
}

TEST(Noise, BeginsAboveThreePercent) {
  EXPECT_FALSE(is_noisy(Summary{.n = 20, .best = 1, .median = 1, .spread = 0.03}));
  EXPECT_TRUE(is_noisy(Summary{.n = 20, .best = 1, .median = 1, .spread = 0.031}));
}

TEST(Ratios, AreTakenRoundByRound) {
  // The machine becomes half as fast, which leaves the ratio as it is.
  const Ratio ratio = qkv::bench::ratio_of(equal_on_both_clocks({2, 2, 4, 4}),
                                           equal_on_both_clocks({1, 1, 2, 2}), Clock::kCpu);
  EXPECT_EQ(ratio.median, 2);
  EXPECT_EQ(ratio.spread, 0);
}

TEST(Ratios, SpreadIsHalfTheInterquartileRangeOverTheMedian) {
  const Ratio ratio =
      qkv::bench::ratio_of(equal_on_both_clocks({1, 2, 3, 4, 5, 6, 7}),
                           equal_on_both_clocks({1, 1, 1, 1, 1, 1, 1}), Clock::kWall);
  EXPECT_EQ(ratio.median, 4);
  EXPECT_EQ(ratio.spread, (6.0 - 2.0) / 2 / 4);
  EXPECT_TRUE(is_noisy(ratio));
}

TEST(Clocks, TheSteadierOneIsTaken) {
  const Series wall_is_steady = {{1, 0.995}, {1, 1}, {1, 1}};
  const Series cpu_is_steady = {{0.995, 1}, {1, 1}, {1, 1}};
  EXPECT_EQ(qkv::bench::steadier(std::array{wall_is_steady}, 1), Clock::kWall);
  EXPECT_EQ(qkv::bench::steadier(std::array{cpu_is_steady}, 1), Clock::kCpu);
}

TEST(Clocks, WallTimeOfASharedProcessorIsNotTaken) {
  const Series shared = {{2, 0.98}, {2, 1}, {2, 1.02}};  // wall time is steady, but twice as long
  EXPECT_EQ(qkv::bench::steadier(std::array{shared}, 1), Clock::kCpu);
}

TEST(Clocks, SeveralThreadsAreTimedByTheWall) {
  const Series cpu_is_steady = {{0.5, 1}, {1, 1}, {2, 1}};
  EXPECT_EQ(qkv::bench::steadier(std::array{cpu_is_steady}, 2), Clock::kWall);
}

TEST(Alternation, SubjectsTakeTurnsAndEachHasItsBursts) {
  std::vector<int> order;
  const auto say = [&](int name) { return [&order, name] { order.push_back(name); }; };
  const std::vector<Subject> subjects = {{say(1)}, {say(2), 20}};
  const auto series = qkv::bench::alternate(subjects, {.burst = 0, .seconds = 0, .rounds = 5});
  ASSERT_EQ(series.size(), 2);
  EXPECT_EQ(series[0].size(), 5);
  EXPECT_EQ(series[1].size(), 20);
  ASSERT_GE(order.size(), 25);
  // The last 25 calls are the 5 rounds, with one burst of subject 1 and four of subject 2. The
  // calls before them find out how many repetitions a burst has.
  for (auto round = order.end() - 25; round != order.end(); round += 5) {
    EXPECT_EQ((std::vector<int>{round, round + 5}), (std::vector<int>{1, 2, 2, 2, 2}));
  }
}

}  // namespace
