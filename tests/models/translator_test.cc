// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/layers/gradients.h"
#include "tests/models/translators.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

using app::TranslationLoss;

TEST(Translator, GradientsAreDerivatives) {
  for (const auto& config : every_config()) {
    for (const Mode mode : {Mode::kEvaluate, Mode::kTrain}) {
      Translator translator = random_translator(config);
      Context context;
      auto gradients = translator.zero_gradients();
      RunState run{mode, 11, 3};
      const TranslationLoss loss =
          translator.loss_and_gradients(some_pairs(), run, gradients, context);
      EXPECT_EQ(loss.tokens, 10);
      auto again = [&] {
        RunState same{mode, 11, 3};
        return translator.loss(some_pairs(), same, context).loss;
      };
      EXPECT_EQ(again(), loss.loss);
      Index seen = 0;
      for_each_parameter(translator, gradients, [&](const auto& p, const Tensor& gradient) {
        ++seen;
        if (p.name == "attention.k.bias") {
          // Adds the same to every score of a query: softmax does not change.
          for (const double d : gradient.template values<double>()) EXPECT_NEAR(d, 0, 1e-13);
          return;
        }
        expect_gradient({p.name, p.value, gradient}, again, replay_of(config));
      });
      Index all = 0;
      for_each_parameter(translator, [&](const auto&) { ++all; });
      EXPECT_EQ(seen, all);
    }
  }
}

struct Learned {
  TranslationLoss loss;
  app::TranslatorGradients gradients;
};

Learned learn(const Translator& translator, const std::vector<app::TokenPair>& pairs, RunState run,
              int threads = 1) {
  Context context(Executor::threads(threads));
  Learned result{{}, translator.zero_gradients()};
  result.loss = translator.loss_and_gradients(pairs, run, result.gradients, context);
  return result;
}

TEST(Translator, ThreadsChangeNoBit) {
  const auto sources = many_sentences(40, 1);
  const auto targets = many_sentences(40, 2);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    const RunState run{Mode::kTrain, 7, 1};
    const Learned want = learn(translator, pairs_of(sources, targets), run);
    for (const int threads : {2, 3}) {
      const Learned got = learn(translator, pairs_of(sources, targets), run, threads);
      EXPECT_EQ(got.loss.loss, want.loss.loss) << replay_of(attention);
      EXPECT_EQ(got.loss.log_probability, want.loss.log_probability) << replay_of(attention);
      EXPECT_EQ(all_bytes(got.gradients), all_bytes(want.gradients)) << replay_of(attention);
    }
  }
}

// Adds the values of all gradients, C-ordered and one after the other, to `sums`.
void add_values(const app::TranslatorGradients& gradients, std::vector<double>& sums) {
  std::size_t place = 0;
  for_each_parameter(gradients, [&](const auto& p) {
    for (const double value : values_of(p.value)) {
      if (place == sums.size()) sums.push_back(0);
      sums[place++] += value;
    }
  });
}

// Each gradient, within a fraction of its own largest number.
void expect_gradients(const app::TranslatorGradients& got, const std::vector<double>& want,
                      double bound, const std::string& replay) {
  std::size_t place = 0;
  for_each_parameter(got, [&](const auto& p) {
    const std::span<const double> part(want.data() + place,
                                       static_cast<std::size_t>(p.value.element_count()));
    place += part.size();
    double largest = 0.1;
    for (const double value : part) largest = std::max(largest, std::fabs(value));
    EXPECT_TRUE(compare(p.name, p.value, part, {0, bound * largest}, replay));
  });
  EXPECT_EQ(place, want.size()) << replay;
}

TEST(Translator, ABatchIsTheSumOfItsPairs) {
  const auto sources = many_sentences(15, 1);
  const auto targets = many_sentences(15, 2);
  const auto pairs = pairs_of(sources, targets);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(odd_config(attention, DType::kFloat64), 3, 0.3);
    std::vector<double> gradients;
    TranslationLoss sum;
    for (const app::TokenPair& pair : pairs) {
      const Learned one = learn(translator, {pair}, {});
      sum.loss += one.loss.loss;
      sum.log_probability += one.loss.log_probability;
      sum.tokens += one.loss.tokens;
      add_values(one.gradients, gradients);
    }
    const Learned all = learn(translator, pairs, {});
    EXPECT_NEAR(all.loss.loss, sum.loss, 1e-12 * sum.loss) << replay_of(attention);
    EXPECT_NEAR(all.loss.log_probability, sum.log_probability, -1e-12 * sum.log_probability);
    EXPECT_EQ(all.loss.tokens, sum.tokens);
    expect_gradients(all.gradients, gradients, 1e-12, replay_of(attention));
  }
}

TEST(Translator, Float32GradientsAreCloseToFloat64Ones) {
  const auto sources = many_sentences(15, 1);
  const auto targets = many_sentences(15, 2);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator exact = random_translator(odd_config(attention, DType::kFloat64), 3, 0.3);
    const Translator rounded = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    std::vector<double> want;
    add_values(learn(exact, pairs_of(sources, targets), {}).gradients, want);
    expect_gradients(learn(rounded, pairs_of(sources, targets), {}).gradients, want, 1e-4,
                     replay_of(attention));
  }
}

// Logits are computed several rows at a time if there are more than 2^20 of them.
TEST(Translator, ALargeVocabularyIsPredictedInPieces) {
  auto config = small_config(TranslatorAttention::kNone);
  config.hidden = 1;
  config.embedding = 1;
  config.target_tokens = (1 << 17) + 1;  // 7 rows at a time
  const Translator translator = random_translator(config);
  const std::vector<Tokens> sources{{4, 2}, {5, 2}, {3, 3, 2}};
  const std::vector<Tokens> targets{{2, 4, 5}, {3, 1 << 17, 2}, {77777, 2}};
  const auto pairs = pairs_of(sources, targets);
  std::vector<double> gradients;
  TranslationLoss sum;
  for (const app::TokenPair& pair : pairs) {
    const Learned one = learn(translator, {pair}, {});
    sum.loss += one.loss.loss;
    sum.log_probability += one.loss.log_probability;
    add_values(one.gradients, gradients);
  }
  const Learned all = learn(translator, pairs, {});
  EXPECT_NEAR(all.loss.loss, sum.loss, 1e-12 * sum.loss);
  EXPECT_NEAR(all.loss.log_probability, sum.log_probability, -1e-12 * sum.log_probability);
  expect_gradients(all.gradients, gradients, 1e-11, "");
}

// ---- training and evaluation ----------------------------------------------------------------

TEST(Translator, DropoutIsOfTrainingAlone) {
  for (const TranslatorAttention attention : kEveryAttention) {
    auto config = small_config(attention);
    const Translator translator = random_translator(config);
    config.dropout = 0;
    const Translator without = random_translator(config);
    const auto pairs = some_pairs();
    const RunState train{Mode::kTrain, 11, 3};
    const double plain = learn(without, pairs, {}).loss.loss;
    EXPECT_EQ(learn(without, pairs, train).loss.loss, plain);
    EXPECT_EQ(learn(translator, pairs, {}).loss.loss, plain);

    const Learned once = learn(translator, pairs, train);
    EXPECT_NE(once.loss.loss, plain);
    const Learned again = learn(translator, pairs, train);
    EXPECT_EQ(again.loss.loss, once.loss.loss);
    EXPECT_EQ(all_bytes(again.gradients), all_bytes(once.gradients));
    EXPECT_NE(learn(translator, pairs, {Mode::kTrain, 12, 3}).loss.loss, once.loss.loss);
    EXPECT_NE(learn(translator, pairs, {Mode::kTrain, 11, 4}).loss.loss, once.loss.loss);
  }
}

struct StopAt {
  int runs = 0;  // until then
  std::atomic<bool> stop = false;
};

// A resumed run must draw what the uninterrupted one drew.
TEST(Translator, APassThatFailsTakesNoStep) {
  const Translator translator =
      random_translator(odd_config(TranslatorAttention::kAdditive, DType::kFloat32));
  const auto pairs = some_pairs();
  auto gradients = translator.zero_gradients();
  Context context;
  RunState run{Mode::kTrain, 11, 3};
  translator.loss_and_gradients(pairs, run, gradients, context);
  const RunState after = run;
  EXPECT_GT(after.step, 3U);
  RunState evaluation{Mode::kEvaluate, 11, 3};
  translator.loss_and_gradients(pairs, evaluation, gradients, context);
  EXPECT_EQ(evaluation.step, 3U);

  // Stopped wherever work is divided among threads.
  const auto sources = many_sentences(40, 1);
  const auto targets = many_sentences(40, 2);
  int stops = 0;
  for (bool whole = false; !whole; stops += 17) {
    StopAt at{.runs = stops};
    Context stopped(Executor(
        [](void* pool, Index count, Executor::Body body, void* state) {
          auto& stop_at = *static_cast<StopAt*>(pool);
          if (stop_at.runs-- == 0) stop_at.stop = true;
          for (Index n = 0; n < count; ++n) body(state, n);
        },
        &at, 2));
    stopped.set_stop_flag(&at.stop);
    RunState attempt{Mode::kTrain, 11, 3};
    try {
      translator.loss_and_gradients(pairs_of(sources, targets), attempt, gradients, stopped);
      whole = true;
    } catch (const Cancelled&) {
      EXPECT_EQ(attempt.step, 3U) << stops;
    }
    if (whole) {
      EXPECT_EQ(attempt.step, after.step);
    }
  }
  EXPECT_GT(stops, 5 * 17);
}

// The optimiser's and the file's view of a gradient stays valid.
TEST(Translator, GradientsAreOverwrittenWhereTheyLie) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(small_config(attention));
    const Learned want = learn(translator, some_pairs(), {});
    auto gradients = translator.zero_gradients();
    std::vector<const void*> places;
    for_each_parameter(gradients, [&](const auto& p) {
      copy(ConstView(&nan, {1}), p.value);
      places.push_back(p.value.view().data());
    });
    RunState run;
    Context context;
    translator.loss_and_gradients(some_pairs(), run, gradients, context);
    EXPECT_EQ(all_bytes(gradients), all_bytes(want.gradients)) << replay_of(attention);
    std::size_t n = 0;
    for_each_parameter(gradients, [&](const auto& p) {
      EXPECT_EQ(p.value.view().data(), places[n++]) << p.name << ", " << replay_of(attention);
    });
    // Without pairs there is nothing to learn.
    const TranslationLoss none = translator.loss_and_gradients({}, run, gradients, context);
    EXPECT_EQ(none.tokens, 0);
    EXPECT_EQ(none.loss, 0);
    EXPECT_EQ(all_bytes(gradients), all_bytes(translator.zero_gradients()));
    EXPECT_EQ(translator.loss({}, run, context).tokens, 0);
  }
}

}  // namespace
}  // namespace qkv::test
