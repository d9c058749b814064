// SPDX-License-Identifier: Apache-2.0
#include "translator/training/training_pace.h"

#include <gtest/gtest.h>

namespace qkv::app {
namespace {

using app::parse_budget;

// A position after 2 of an epoch's 10 batches and 34 updates in all (an earlier epoch had more
// batches).
constexpr Position kAt{{.epochs = 3, .updates = 34, .seconds = 100}, 2, 10};

TEST(TrainingPace, CountsTheValidationsThatBecomeDue) {
  EXPECT_EQ(validations_due(parse_budget("5u"), kAt, 0, 0), 0);
  EXPECT_EQ(validations_due(parse_budget("5u"), kAt, 1, 0), 1);
  EXPECT_EQ(validations_due(parse_budget("5u"), kAt, 5, 0), 1);
  EXPECT_EQ(validations_due(parse_budget("5u"), kAt, 6, 0), 2);
  EXPECT_EQ(validations_due(parse_budget("1e"), kAt, 7, 0), 0);
  EXPECT_EQ(validations_due(parse_budget("1e"), kAt, 8, 0), 1);
  EXPECT_EQ(validations_due(parse_budget("2e"), kAt, 8, 0), 1);
  EXPECT_EQ(validations_due(parse_budget("3e"), kAt, 8, 0), 0);
  EXPECT_EQ(validations_due(parse_budget("60s"), kAt, 1000, 59), 0);
  EXPECT_EQ(validations_due(parse_budget("60s"), kAt, 1000, 121), 2);
  EXPECT_EQ(validations_due(parse_budget("2e,60s"), kAt, 8, 121), 2);
  EXPECT_EQ(validations_due(app::Budget{}, kAt, 1000, 1000), 0);
}

TEST(TrainingPace, ValidationsAreInTheTimeThatIsLeft) {
  // An update takes 2 seconds, and a validation 30.
  const auto left = [&](const char* after, const char* every) {
    const app::Budget validate = *every == '\0' ? app::Budget{} : parse_budget(every);
    return seconds_left(parse_budget(after), validate, kAt, {2, 30}).value();
  };
  EXPECT_EQ(left("34u", "5u"), 0);
  EXPECT_EQ(left("3e", "5u"), 0);
  EXPECT_EQ(left("44u", ""), 20);
  EXPECT_EQ(left("44u", "5u"), 20 + 2 * 30);
  EXPECT_EQ(left("5e", "1e"), 18 * 2 + 2 * 30);
  EXPECT_EQ(left("5e", "15s"), 18 * 2 + 2 * 30);
  EXPECT_EQ(left("150s", "5u"), 50);  // a time budget includes validations
  EXPECT_EQ(left("44u,150s", "5u"), 50);
  EXPECT_EQ(left("44u,150s", ""), 20);
  EXPECT_EQ(left("99s", ""), 0);
  EXPECT_FALSE(seconds_left({}, parse_budget("5u"), kAt, {2, 30}).has_value());
}

TEST(TrainingPace, GoesOnFromEarlierRuns) {
  TrainingPace pace;
  EXPECT_EQ(pace.speed().seconds_per_update, 0);
  pace.start(1e9);
  EXPECT_GE(pace.seconds(), 1e9);
  pace.add_update(50);
  pace.add_update(70);
  pace.add_validation(4e6);
  pace.add_validation(2e6);
  EXPECT_EQ(pace.speed().seconds_per_validation, 3e6);
  // The time of training is the time of this run without its validations: here -6e6 seconds, plus
  // the few seconds that this test takes.
  const double least = pace.seconds() - 1e9 - 6e6;
  const double per_update = pace.speed().seconds_per_update;
  const double tokens_per_second = pace.tokens_per_second();
  const double most = pace.seconds() - 1e9 - 6e6;
  EXPECT_GE(per_update, least / 2);
  EXPECT_LE(per_update, most / 2);
  EXPECT_GE(tokens_per_second, 120 / most);
  EXPECT_LE(tokens_per_second, 120 / least);
}

}  // namespace
}  // namespace qkv::app
