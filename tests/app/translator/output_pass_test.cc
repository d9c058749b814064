// SPDX-License-Identifier: Apache-2.0
// Tests the output layer on all rows of a batch, and passes that end at the readout.
#include "translator/passes/output_pass.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/vocabulary.h>

#include "tests/app/translator/translators.h"
#include "tests/layers/gradients.h"
#include "tests/layers/support.h"
#include "tests/support/compare.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/translator_pass.h"

namespace qkv::app {
namespace {

using test::bytes_of;
using test::random_tensor;

std::vector<std::int32_t> random_targets(Index count, Index V) {
  std::mt19937 random(5);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(count));
  for (auto& target : targets) {
    target = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(V));
  }
  return targets;
}

// The expected results: the layer and the loss on all rows at once.
struct Whole {
  TranslationLoss loss;
  Tensor d_rows;
  LinearParameters gradients;

  Whole(const Translator& translator, const Tensor& rows, const std::vector<std::int32_t>& targets)
      : d_rows(rows.dtype(), rows.shape()) {
    const TranslatorConfig& config = translator.config();
    const Index N = rows.size(0);
    Linear layer(rows.size(1), config.target_tokens, true, rows.dtype());
    layer.parameters() = {contiguous(output_weight(config, translator.parameters())),
                          contiguous(translator.parameters().output.parameters().bias)};
    gradients = layer.zero_gradients();
    Tensor logits(rows.dtype(), {N, config.target_tokens});
    Linear::Saved saved;
    layer.forward(rows, saved, logits);
    const CrossEntropy cross_entropy(config.label_smoothing);
    CrossEntropy::Saved saved_loss;
    Tensor losses(rows.dtype(), {N});
    Tensor log_probabilities(rows.dtype(), {N});
    cross_entropy.forward(logits, ConstView(targets.data(), {N}), saved_loss,
                          {losses, log_probabilities});
    for (const double one : test::values_of(losses)) loss.loss += one;
    for (const double one : test::values_of(log_probabilities)) loss.log_probability += one;
    Tensor ones(rows.dtype(), {N});
    for (Index n = 0; n < N; ++n) core::store(rows.dtype(), ones.view().data(), n, 1.0);
    cross_entropy.backward(saved_loss, ones, logits);
    layer.backward(saved, logits, d_rows, gradients);
  }
};

// The counts of rows are around 384, the rows that are computed at a time, and around 128, the rows
// in a block of the gradients' sums.
TEST(OutputPass, IsTheLayerOnAllRowsToTheBit) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const test::Network& network : test::kEveryNetwork) {
      TranslatorConfig config =
          with(test::odd_config(test::TranslatorAttention::kDot, dtype), network);
      config.target_tokens = 70;
      const Translator translator = test::random_translator(config);
      for (const Index N : {1, 127, 129, 383, 384, 385, 800}) {
        const std::vector<std::int32_t> targets = random_targets(N, config.target_tokens);
        const Tensor rows = random_tensor(dtype, {N, readout_width(config)}, 4);
        const Whole want(translator, rows, targets);
        for (const int threads : {1, 2, 3}) {
          const std::string replay = test::replay_of(config) + ", " + std::to_string(N) +
                                     " rows, " + std::to_string(threads) + " threads";
          Context context(Executor::threads(threads));
          OutputPass pass(config, translator.parameters(), targets, context);
          copy(rows, pass.rows(0, N));
          EXPECT_EQ(pass.loss().log_probability, want.loss.log_probability) << replay;
          TranslatorGradients gradients = translator.zero_gradients();
          const double nan = std::numeric_limits<double>::quiet_NaN();
          for_each_parameter(gradients,
                             [&](const auto& p) { copy(ConstView(&nan, {1}), p.value); });
          const TranslationLoss loss = pass.loss_and_gradients(gradients);
          EXPECT_EQ(loss.tokens, N);
          EXPECT_EQ(loss.loss, want.loss.loss) << replay;
          EXPECT_EQ(loss.log_probability, want.loss.log_probability) << replay;
          EXPECT_EQ(bytes_of(contiguous(pass.d_rows(0, N))), bytes_of(want.d_rows)) << replay;
          EXPECT_EQ(bytes_of(output_weight(config, gradients)), bytes_of(want.gradients.weight))
              << replay;
          EXPECT_EQ(bytes_of(gradients.output.bias), bytes_of(want.gradients.bias)) << replay;
        }
      }
    }
  }
}

TEST(OutputPass, OfNoRowsIsNothing) {
  const Translator translator =
      test::random_translator(test::small_config(test::TranslatorAttention::kDot));
  Context context;
  OutputPass pass(translator.config(), translator.parameters(), {}, context);
  EXPECT_EQ(pass.loss().tokens, 0);
}

// There is one row for each target token: the rows of step 0, then those of step 1, and so on. The
// rows of a sentence pair do not depend on padding.
TEST(TranslatorPass, HasNoRowsForPadding) {
  const auto config = test::odd_config(test::TranslatorAttention::kAdditive, DType::kFloat32);
  const Translator translator = test::random_translator(config, 3, 0.3);
  const auto pairs = test::some_pairs();  // targets of 2, 5 and 3 tokens
  Context context;
  TranslatorPass pass("Test", config, translator.parameters(), pairs, context);
  EXPECT_EQ(pass.targets(), (std::vector<std::int32_t>{4, 5, 3, 2, 4, 5, 3, 2, 5, 2}));
  Tensor rows(config.dtype, {10, readout_width(config)});
  RunState run{Mode::kEvaluate};
  pass.forward(run, rows);

  const std::vector<std::vector<Index>> rows_of_pair{{0, 3}, {1, 4, 6, 8, 9}, {2, 5, 7}};
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    TranslatorPass alone("Test", config, translator.parameters(), std::span(pairs).subspan(n, 1),
                         context);
    Tensor own(config.dtype, {std::ssize(rows_of_pair[n]), readout_width(config)});
    alone.forward(run, own);
    for (std::size_t t = 0; t < rows_of_pair[n].size(); ++t) {
      const auto row = static_cast<Index>(t);
      EXPECT_EQ(
          bytes_of(contiguous(slice(rows.view(), 0, rows_of_pair[n][t], rows_of_pair[n][t] + 1))),
          bytes_of(contiguous(slice(own.view(), 0, row, row + 1))))
          << "pair " << n << ", token " << t;
    }
  }
}

}  // namespace
}  // namespace qkv::app
