// SPDX-License-Identifier: Apache-2.0
#include "translator/training/budget.h"

#include <string>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;

TEST(Budget, IsRead) {
  const Budget all = parse_budget("10e,5000u,30m");
  EXPECT_EQ(all.epochs, 10);
  EXPECT_EQ(all.updates, 5000);
  EXPECT_EQ(all.seconds, 1800.0);
  EXPECT_EQ(to_string(all), "10e,5000u,1800s");
  EXPECT_EQ(to_string(parse_budget("7u")), "7u");
  EXPECT_EQ(parse_budget("1.5h").seconds, 5400.0);
  EXPECT_EQ(parse_budget("0.25s,1e").seconds, 0.25);
  EXPECT_EQ(to_string(Budget{}), "");
}

TEST(Budget, RefusesInvalidBudgets) {
  const auto refused = [](const std::string& text) {
    return complaint<Error>([&] { parse_budget(text); });
  };
  const std::string start = "parse_budget: budget must be like 10e,5000u,30m: ";
  const std::string units = start + "units are e (epochs), u (updates), s, m, h, got ";
  EXPECT_EQ(refused(""), units + "\"\"");
  EXPECT_EQ(refused("10"), units + "\"10\"");
  EXPECT_EQ(refused("10e,"), units + "\"\"");
  EXPECT_EQ(refused("5d"), units + "\"5d\"");
  const std::string whole = start + "a positive whole number before the unit, got ";
  for (const char* text : {"e", "0e", "-1u", "1.5e", " 1e", "99999999999999999999u", "1ee"}) {
    EXPECT_EQ(refused(text), whole + "\"" + text + "\"");
  }
  EXPECT_EQ(refused("0m"), start + "a positive number before the unit, got \"0m\"");
  EXPECT_EQ(refused("infs"), start + "a positive number before the unit, got \"infs\"");
  EXPECT_EQ(refused("1e,2e"), start + "epochs may be given only once, got \"2e\"");
  EXPECT_EQ(refused("30m,1h"), start + "a time may be given only once, got \"1h\"");
}

TEST(Budget, IsSpentAtItsFirstLimit) {
  const Budget budget = parse_budget("2e,100u,10s");
  EXPECT_FALSE(is_spent(budget, {1, 99, 9.9}));
  EXPECT_TRUE(is_spent(budget, {2, 0, 0}));
  EXPECT_TRUE(is_spent(budget, {0, 100, 0}));
  EXPECT_TRUE(is_spent(budget, {0, 0, 10}));
  EXPECT_FALSE(is_spent(Budget{}, {1000, 1000, 1e9}));
}

}  // namespace
}  // namespace qkv::app
