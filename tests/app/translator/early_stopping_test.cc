// SPDX-License-Identifier: Apache-2.0
#include "translator/training/early_stopping.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace qkv::app {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(EarlyStopping, CountsLossesThatAreNoBetter) {
  EarlyStopping stopping(2, BestBy::kLoss);
  EXPECT_FALSE(stopping.has_best());
  EXPECT_TRUE(stopping.take({3, 0}));
  EXPECT_FALSE(stopping.take({3, 50}));
  EXPECT_FALSE(stopping.is_over());
  EXPECT_TRUE(stopping.take({2, 1}));
  EXPECT_FALSE(stopping.take({std::nan(""), 100}));
  EXPECT_FALSE(stopping.is_over());
  EXPECT_EQ(stopping.misses(), 1);
  EXPECT_FALSE(stopping.take({2.5, 9}));
  EXPECT_TRUE(stopping.is_over());
  EXPECT_EQ(stopping.best().loss, 2);
  EXPECT_EQ(stopping.best().bleu, 1);

  EarlyStopping again(2, BestBy::kLoss);
  again.restore(stopping.best(), 1);
  EXPECT_TRUE(again.has_best());
  EXPECT_FALSE(again.take({2, 9}));
  EXPECT_TRUE(again.is_over());
}

TEST(EarlyStopping, WithoutPatienceThereIsNoEnd) {
  EarlyStopping stopping;
  EXPECT_EQ(stopping.best().loss, kInfinity);
  for (int n = 0; n < 100; ++n) stopping.take({1, 1});
  EXPECT_FALSE(stopping.is_over());
  EXPECT_EQ(stopping.misses(), 99);
}

// More BLEU is better, whatever the loss; equal BLEU with less loss is better; a loss that is not
// finite is never better.
TEST(EarlyStopping, ByBleu) {
  EarlyStopping stopping(3, BestBy::kBleu);
  EXPECT_TRUE(stopping.take({2, 0}));  // any first result is better than none
  EXPECT_TRUE(stopping.take({1.5, 0}));
  EXPECT_FALSE(stopping.take({1.5, 0}));
  EXPECT_TRUE(stopping.take({1.9, 20}));
  EXPECT_FALSE(stopping.take({1, 19.9}));
  EXPECT_FALSE(stopping.take({std::nan(""), 30}));
  EXPECT_FALSE(stopping.is_over());
  EXPECT_FALSE(stopping.take({kInfinity, 30}));
  EXPECT_TRUE(stopping.is_over());
  EXPECT_EQ(stopping.best().loss, 1.9);
  EXPECT_TRUE(stopping.is_better({1.8, 20}));
  EXPECT_FALSE(stopping.is_better({1.9, 20}));
}

// A negative BLEU stands for an unknown one.
TEST(EarlyStopping, WithoutBleuTheLossDecides) {
  EarlyStopping stopping(3, BestBy::kBleu);
  EXPECT_TRUE(stopping.take({2, -1}));
  EXPECT_TRUE(stopping.take({1.5, -1}));
  EXPECT_FALSE(stopping.take({1.6, -1}));
  EXPECT_FALSE(stopping.is_better({1.6, 65}));
  EXPECT_TRUE(stopping.is_better({1.4, 0}));
  stopping.restore({0.5, 65}, 0);  // the best of a run whose validations had a BLEU
  EXPECT_TRUE(stopping.is_better({0.4, -1}));
  EXPECT_FALSE(stopping.is_better({0.6, -1}));
}

}  // namespace
}  // namespace qkv::app
