// SPDX-License-Identifier: Apache-2.0
#include "translator/search/continuations.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layers/logit_kernels.h"

namespace qkv::test {
namespace {

using app::Continuation;
using app::ContinuedRow;
using app::Normaliser;
using app::RowScores;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Index kFirstToken = 2;  // neither padding nor the start

// The expected result: all continuations, the likeliest first.
template <class T>
std::vector<Continuation> all_of(const std::vector<ContinuedRow<T>>& rows, Index V) {
  std::vector<Continuation> all;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    for (Index v = kFirstToken; v < V; ++v) {
      const double log_probability =
          static_cast<double>(rows[k].logits[v]) - rows[k].normaliser.log_sum;
      const double total = rows[k].so_far + log_probability;
      if (std::isnan(total)) continue;
      all.push_back({static_cast<Index>(k), static_cast<std::int32_t>(v), total});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Continuation& a, const Continuation& b) {
    return a.log_probability > b.log_probability;
  });
  return all;
}

// Logits of `rows` hypotheses: three different values if there are to be ties, else normal numbers.
template <class T>
std::vector<T> logits(Index rows, Index V, bool ties) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rows * V));
  std::normal_distribution<double> normal(0, 4);
  std::vector<T> all(static_cast<std::size_t>(rows * V));
  for (T& value : all) {
    value = static_cast<T>(ties ? static_cast<double>(random() % 3) : normal(random));
  }
  return all;
}

// The rows of hypotheses with these logits [rows,V], to be continued by the kernels of `path`.
template <class T>
class Rows {
 public:
  Rows(std::vector<T> logits, Index V, const std::string& path)
      : V_(V), logits_(std::move(logits)) {
    context_.force_path(path);
    by_ = layers::logit_kernels_in_use<T>(context_, "test");
    for (std::size_t at = 0; at < logits_.size(); at += static_cast<std::size_t>(V)) {
      const T* const row = logits_.data() + at;
      const Normaliser normaliser = app::normaliser(row, V, RowScores::kLogProbabilities, by_);
      rows_.push_back({row, normaliser, -0.3 * static_cast<double>(rows_.size())});
    }
  }
  void expect_best(const std::string& replay) {
    const std::vector<Continuation> all = all_of(rows_, V_);
    for (const std::size_t wanted :
         {std::size_t{1}, std::size_t{2}, std::size_t{10}, std::size_t{100000}}) {
      const std::vector<Continuation> best =
          app::likeliest<T>(rows_, V_, static_cast<Index>(wanted), by_);
      ASSERT_EQ(best.size(), std::min(wanted, all.size())) << replay;
      for (std::size_t n = 0; n < best.size(); ++n) {
        EXPECT_EQ(best[n].parent, all[n].parent) << replay << " " << n;
        EXPECT_EQ(best[n].token, all[n].token) << replay << " " << n;
        EXPECT_EQ(best[n].log_probability, all[n].log_probability) << replay << " " << n;
      }
    }
  }
  std::vector<ContinuedRow<T>>& rows() { return rows_; }

 private:
  Index V_;
  std::vector<T> logits_;
  Context context_{};
  kernels::LogitKernels<T> by_{};
  std::vector<ContinuedRow<T>> rows_{};
};

template <class T>
void compare(const std::string& path) {
  for (const Index V : {3, 4, 70, 1003}) {
    for (const Index count : {1, 5}) {
      for (const bool ties : {false, true}) {
        const std::string replay = path + " V " + std::to_string(V) + ", " + std::to_string(count) +
                                   (ties ? " rows with ties" : " rows");
        const std::vector<T> x = logits<T>(count, V, ties);
        Rows<T>(x, V, path).expect_best(replay);
        for (const double value : {kNan, kInfinity, -kInfinity, 1e30}) {
          for (const Index place : {Index{0}, V - 1, V * (count - 1) + 2}) {
            std::vector<T> changed = x;
            changed[static_cast<std::size_t>(place)] = static_cast<T>(value);
            Rows<T>(changed, V, path)
                .expect_best(replay + ", " + std::to_string(value) + " at " +
                             std::to_string(place));
          }
        }
        Rows<T> impossible(x, V, path);
        impossible.rows()[0].so_far = -kInfinity;
        impossible.expect_best(replay + ", row 0 of probability 0");
      }
    }
  }
}

TEST(Continuations, AreTheLikeliestInOrder) {
  for (const std::string path : {"", "reference"}) {
    compare<float>(path);
    compare<double>(path);
  }
}

TEST(Continuations, ARowWithoutAFiniteSumHasNone) {
  const Context context;
  const auto by = layers::logit_kernels_in_use<float>(context, "test");
  const auto sum = [&](std::vector<float> x) {
    const Normaliser all =
        app::normaliser(x.data(), std::ssize(x), RowScores::kLogProbabilities, by);
    const Normaliser order = app::normaliser(x.data(), std::ssize(x), RowScores::kOnlyOrder, by);
    EXPECT_EQ(all.given(), order.given());
    return all.log_sum;
  };
  const auto infinity = static_cast<float>(kInfinity);
  EXPECT_TRUE(std::isnan(sum({1, 2, static_cast<float>(kNan)})));
  EXPECT_TRUE(std::isnan(sum({1, 2, infinity})));
  EXPECT_TRUE(std::isnan(sum({-infinity, -infinity})));
  EXPECT_NEAR(sum({1, 1, 1, -infinity}), 1 + std::log(3), 1e-15);
}

}  // namespace
}  // namespace qkv::test
