// SPDX-License-Identifier: Apache-2.0
#include "translator/data/tasks.h"

#include <chrono>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "core/draws.h"
#include "translator/data/date_words.h"

namespace qkv::app {
namespace {

using std::chrono::days;
using std::chrono::sys_days;
using std::chrono::year;

// A model's documented command reproduces the model only as long as these examples do not change.
TEST(Tasks, ExamplesArePinned) {
  EXPECT_EQ(date_example(0, 0).source, "JANUARY THE FOURTEENTH, 1933");
  EXPECT_EQ(date_example(0, 0).target, "1933-01-14");
  EXPECT_EQ(date_example(9, 99999999, DaySplit::kTest).source, "1913 08 25");
  EXPECT_EQ(reverse_example(0, 0).source, "xujglmysgoxjqj");
}

TEST(Tasks, RefuseNumbersBelowZero) {
  EXPECT_THROW(date_example(0, -1), Error);
  EXPECT_THROW(reverse_example(0, -1), Error);
}

// A source has only one target, whatever is drawn.
TEST(Dates, ASpellingMeansOneDay) {
  std::map<std::string, std::string> meanings;
  for (Index n = 0; n < 40000; ++n) {
    const Example one = date_example(1, n);
    EXPECT_EQ(meanings.emplace(one.source, one.target).first->second, one.target) << one.source;
  }
}

TEST(Dates, ATenthOfTheDaysAreTestDays) {
  int test = 0;
  int all = 0;
  for (sys_days day = year(1900) / 1 / 1; day < sys_days(year(2100) / 1 / 1); day += days(1)) {
    ++all;
    if (is_test_day(day)) ++test;
  }
  EXPECT_EQ(all, 73049);
  EXPECT_NEAR(test / 73049.0, 0.1, 0.005);  // the bound is four and a half deviations
}

TEST(Dates, YearsHaveWords) {
  const auto words_of = [](int year) {
    std::map<std::string, int> words;
    for (Index n = 0; n < 200; ++n) {
      core::Draws draws(0, core::DrawStream::kDates, n);
      ++words[year_words(year, draws)];
    }
    return words;
  };
  const auto has = [](const auto& words, const char* text) { return words.contains(text); };
  EXPECT_EQ(words_of(1900), (std::map<std::string, int>{{"nineteen hundred", 200}}));
  EXPECT_EQ(words_of(2000), (std::map<std::string, int>{{"two thousand", 200}}));
  EXPECT_TRUE(has(words_of(1905), "nineteen oh five"));
  EXPECT_TRUE(has(words_of(1905), "nineteen hundred and five"));
  EXPECT_TRUE(has(words_of(1987), "nineteen eighty-seven"));
  EXPECT_TRUE(has(words_of(1987), "nineteen eighty seven"));
  EXPECT_TRUE(has(words_of(2010), "twenty ten"));
  EXPECT_TRUE(has(words_of(2010), "two thousand and ten"));
  EXPECT_TRUE(has(words_of(2040), "twenty forty"));
}

TEST(Draws, AreEquallyLikely) {
  core::Draws draws(7, core::DrawStream::kReverse, 0);
  int counts[6] = {};
  for (int n = 0; n < 60000; ++n) ++counts[draws.below(6)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

// With a bound of three quarters of 2^32, drawing without rejection would favour every third
// number.
TEST(Draws, LargeBoundsFavourNoNumber) {
  core::Draws draws(7, core::DrawStream::kReverse, 1);
  int thirds[3] = {};
  for (int n = 0; n < 30000; ++n) ++thirds[draws.below(3U << 30) % 3];
  for (const int count : thirds) EXPECT_NEAR(count, 10000, 500);
}

}  // namespace
}  // namespace qkv::app
