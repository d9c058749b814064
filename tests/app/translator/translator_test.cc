// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/app/translator/learned.h"
#include "tests/app/translator/translators.h"
#include "tests/layers/gradients.h"
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
          // This bias adds one number to every score of a query, which does not change the softmax,
          // so the gradient is 0.
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

TEST(Translator, ThreadsChangeNoBit) {
  const auto sources = many_sentences(40, 1);
  const auto targets = many_sentences(40, 2);
  const auto pairs = pairs_of(sources, targets);
  std::vector<app::TranslatorConfig> configs;
  for (const TranslatorAttention attention : kEveryAttention) {
    configs.push_back(odd_config(attention, DType::kFloat32));
  }
  for (const Network& network : kEveryNetwork) {
    configs.push_back(with(odd_config(TranslatorAttention::kAdditive, DType::kFloat32), network));
  }
  for (const app::TranslatorConfig& config : configs) {
    const Translator translator = random_translator(config, 3, 0.3);
    const RunState run{Mode::kTrain, 7, 1};
    const Learned want = learn(translator, pairs, run);
    for (const int threads : {2, 3}) {
      const Learned got = learn(translator, pairs, run, threads);
      EXPECT_EQ(got.loss.loss, want.loss.loss) << replay_of(config);
      EXPECT_EQ(got.loss.log_probability, want.loss.log_probability) << replay_of(config);
      EXPECT_EQ(all_bytes(got.gradients), all_bytes(want.gradients)) << replay_of(config);
    }
  }
}

TEST(Translator, ABatchIsTheSumOfItsPairs) {
  const auto sources = many_sentences(15, 1);
  const auto targets = many_sentences(15, 2);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(odd_config(attention, DType::kFloat64), 3, 0.3);
    expect_sum_of_pairs(translator, pairs_of(sources, targets), 1e-12, replay_of(attention));
  }
}

TEST(Translator, Float32GradientsAreCloseToFloat64Ones) {
  const auto sources = many_sentences(15, 1);
  const auto targets = many_sentences(15, 2);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator exact = random_translator(odd_config(attention, DType::kFloat64), 3, 0.3);
    const Translator rounded = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    const ValuesByName want = values_by_name(learn(exact, pairs_of(sources, targets)).gradients);
    expect_gradients(learn(rounded, pairs_of(sources, targets)).gradients, want, 1e-4,
                     replay_of(attention));
  }
}

// With a large vocabulary, the loss and gradients are the sums of the losses and gradients of each
// sentence pair, also if the target embedding is the output's matrix.
TEST(Translator, ALargeVocabularyIsPredictedInPieces) {
  for (const bool is_tied : {false, true}) {
    auto config = small_config(TranslatorAttention::kNone);
    if (is_tied) config.tied_embeddings = app::TiedEmbeddings::kOutput;
    config.hidden = 1;
    config.embedding = is_tied ? 2 : 1;
    config.target_tokens = (1 << 17) + 1;
    const Translator translator = random_translator(config);
    const std::vector<Tokens> sources{{4, 2}, {5, 2}, {3, 3, 2}};
    const std::vector<Tokens> targets{{2, 4, 5}, {3, 1 << 17, 2}, {77777, 2}};
    expect_sum_of_pairs(translator, pairs_of(sources, targets), 1e-11, is_tied ? "tied" : "");
  }
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
  int runs = 0;  // parallel runs before the flag is set
  std::atomic<bool> stop = false;
};

// A failed pass leaves the step unchanged, so that a resumed run draws the same dropout as an
// uninterrupted one.
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

  // The executor sets the stop flag when it divides work among threads; each attempt is stopped 17
  // such divisions later than the one before.
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

// The views that the optimiser and files have of a gradient stay valid.
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
    // Without sentence pairs, loss and gradients are 0.
    const TranslationLoss none = translator.loss_and_gradients({}, run, gradients, context);
    EXPECT_EQ(none.tokens, 0);
    EXPECT_EQ(none.loss, 0);
    EXPECT_EQ(all_bytes(gradients), all_bytes(translator.zero_gradients()));
    EXPECT_EQ(translator.loss({}, run, context).tokens, 0);
  }
}

}  // namespace
}  // namespace qkv::test
