// SPDX-License-Identifier: Apache-2.0
// Tests that an invalid call reports which argument broke which rule, and leaves gradients and
// steps unchanged.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "tests/app/translator/translators.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

using app::SearchOptions;
using app::TokenPair;
using app::TranslatorConfig;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Index kTooMuch = (Index{1} << 24) + 1;

std::string refused(const std::function<void(TranslatorConfig&)>& change,
                    TranslatorAttention attention = TranslatorAttention::kAdditive) {
  TranslatorConfig config = small_config(attention);
  change(config);
  return message_of([&] { Translator translator(config); });
}

TEST(TranslatorErrors, ConfigurationsNameTheArgument) {
  using C = TranslatorConfig;
  EXPECT_EQ(refused([](C&) {}), "");
  EXPECT_EQ(refused([](C& c) { c.source_tokens = 3; }),
            "Translator: source_tokens must be at least 4, got 3");
  EXPECT_EQ(refused([](C& c) { c.target_tokens = 0; }),
            "Translator: target_tokens must be at least 4, got 0");
  EXPECT_EQ(refused([](C& c) { c.embedding = 0; }),
            "Translator: embedding must be at least 1, got 0");
  EXPECT_EQ(refused([](C& c) { c.hidden = -4; }), "Translator: hidden must be at least 1, got -4");
  EXPECT_EQ(refused([](C& c) { c.encoder_layers = 0; }),
            "Translator: encoder_layers must be at least 1, got 0");
  EXPECT_EQ(refused([](C& c) { c.units = 0; }), "Translator: units must be at least 1, got 0");
  EXPECT_EQ(refused([](C& c) { c.heads = 0; }), "Translator: heads must be at least 1, got 0");
  EXPECT_EQ(refused([](C& c) { c.heads = 3; }, TranslatorAttention::kMultiHead),
            "Translator: heads must divide hidden, got 3 heads for 4");
  EXPECT_EQ(refused([](C& c) { c.heads = 3; }), "");  // unused by additive attention
  EXPECT_EQ(refused([](C& c) { c.dropout = 1; }), "Translator: dropout must be in [0,1), got 1");
  EXPECT_EQ(refused([](C& c) { c.dropout = kNaN; }),
            "Translator: dropout must be in [0,1), got nan");
  EXPECT_EQ(refused([](C& c) { c.label_smoothing = -0.1; }),
            "Translator: label_smoothing must be in [0,1), got -0.1");
  EXPECT_EQ(refused([](C& c) { c.dtype = DType::kBFloat16; }),
            "Translator: dtype must be float32 or float64, got bfloat16");
  EXPECT_EQ(refused([](C& c) { c.hidden = kTooMuch; }),
            "Translator: hidden must be at most 16777216, got 16777217");
  EXPECT_EQ(refused([](C& c) { c.source_tokens = std::numeric_limits<Index>::max(); }),
            "Translator: source_tokens must be at most 16777216, got 9223372036854775807");
}

class TranslatorCalls : public testing::Test {
 protected:
  // Returns the message of loss(). Checks that loss_and_gradients() has the same message under its
  // own name, and leaves the gradients and the step unchanged.
  std::string loss(const Tokens& source, const Tokens& target) {
    const std::vector<TokenPair> pairs{{some_sources()[0], some_targets()[0]}, {source, target}};
    RunState run{Mode::kTrain, 1, 5};
    auto gradients = translator_.zero_gradients();
    const std::string message = message_of([&] { translator_.loss(pairs, run, context_); });
    const std::string same =
        message_of([&] { translator_.loss_and_gradients(pairs, run, gradients, context_); });
    const std::string function = "Translator::loss";
    EXPECT_TRUE(message.starts_with(function + ": ")) << message;
    EXPECT_EQ(same, function + "_and_gradients" + message.substr(function.size()));
    EXPECT_EQ(run.step, 5U);
    EXPECT_EQ(all_bytes(gradients), all_bytes(translator_.zero_gradients()));
    return message;
  }
  std::string translate(const Tokens& source, const SearchOptions& options = {}) {
    const std::vector<Tokens> sources{some_sources()[0], source};
    return message_of([&] { translator_.translate(lists_of(sources), options, context_); });
  }

  const Translator translator_ =
      random_translator(small_config(TranslatorAttention::kAdditive, DType::kFloat32));
  Context context_;
};

TEST_F(TranslatorCalls, TokensOutsideTheirVocabulary) {
  const std::string source = "Translator::loss: pairs' source must have tokens in 1..6, got ";
  EXPECT_EQ(loss({3, 7, 2}, {2}), source + "7 at [1][1]");
  EXPECT_EQ(loss({-1, 2}, {2}), source + "-1 at [1][0]");
  EXPECT_EQ(loss({3, 2, 0}, {2}), source + "0 at [1][2]");  // padding
  const std::string target = "Translator::loss: pairs' target must have tokens in 1..5, got ";
  EXPECT_EQ(loss({2}, {6}), target + "6 at [1][0]");
  EXPECT_EQ(loss({2}, {2, 0}), target + "0 at [1][1]");
  EXPECT_EQ(loss({2}, {std::numeric_limits<std::int32_t>::min()}),
            target + "-2147483648 at [1][0]");
  EXPECT_EQ(translate({3, 7, 2}),
            "Translator::translate: sources must have tokens in 1..6, got 7 at [1][1]");
  EXPECT_EQ(translate({0}),
            "Translator::translate: sources must have tokens in 1..6, got 0 at [1][0]");
}

TEST_F(TranslatorCalls, ListsWithoutTokens) {
  EXPECT_EQ(loss({}, {2}), "Translator::loss: pairs' source must have tokens, but [1] is empty");
  EXPECT_EQ(loss({2}, {}), "Translator::loss: pairs' target must have tokens, but [1] is empty");
  EXPECT_EQ(translate({}), "Translator::translate: sources must have tokens, but [1] is empty");
}

TEST_F(TranslatorCalls, SearchOptions) {
  const std::string prefix = "Translator::translate: ";
  EXPECT_EQ(translate({2}, {.beam = 0}), prefix + "beam must be in 1..1000, got 0");
  EXPECT_EQ(translate({2}, {.beam = 1001}), prefix + "beam must be in 1..1000, got 1001");
  EXPECT_EQ(translate({2}, {.most_tokens = -1}),
            prefix + "most_tokens must not be negative, got -1");
  EXPECT_EQ(translate({2}, {.length_penalty = -1}),
            prefix + "length_penalty must be finite and at least 0, got -1");
  EXPECT_EQ(translate({2}, {.length_penalty = kNaN}),
            prefix + "length_penalty must be finite and at least 0, got nan");
  EXPECT_EQ(translate({2}, {.length_penalty = std::numeric_limits<double>::infinity()}),
            prefix + "length_penalty must be finite and at least 0, got inf");
  EXPECT_EQ(translate({2}, {.beam = 1000, .most_tokens = 2}), "");
  EXPECT_EQ(translate({2}, {.length_penalty = std::numeric_limits<double>::max()}), "");
}

TEST_F(TranslatorCalls, GradientsOfAnotherModel) {
  const auto pairs = some_pairs();
  RunState run{Mode::kTrain, 1, 5};
  const auto message = [&](app::TranslatorGradients gradients) {
    const auto before = all_bytes(gradients);
    const std::string text =
        message_of([&] { translator_.loss_and_gradients(pairs, run, gradients, context_); });
    EXPECT_EQ(all_bytes(gradients), before);
    EXPECT_EQ(run.step, 5U);
    return text;
  };
  const std::string prefix =
      "Translator::loss_and_gradients: gradients must be those of zero_gradients(): ";
  EXPECT_EQ(message({}), prefix + "expected source_embedding.weight float32 [7,3], got nothing");
  for (const TranslatorAttention attention : kEveryAttention) {
    if (attention == TranslatorAttention::kAdditive) continue;
    const Translator other = random_translator(small_config(attention, DType::kFloat32));
    EXPECT_EQ(message(other.zero_gradients()).substr(0, prefix.size()), prefix)
        << replay_of(attention);
  }
  for (const Network& network : kEveryNetwork) {
    if (network.encoder_layers == 1 && network.tied == app::TiedEmbeddings::kNone) continue;
    const Translator other(
        with(small_config(TranslatorAttention::kAdditive, DType::kFloat32), network));
    EXPECT_EQ(message(other.zero_gradients()).substr(0, prefix.size()), prefix);
  }
  const Translator exact = random_translator(small_config(TranslatorAttention::kAdditive));
  EXPECT_EQ(message(exact.zero_gradients()),
            prefix +
                "expected source_embedding.weight float32 [7,3], got "
                "source_embedding.weight float64 [7,3]");
  auto without = translator_.zero_gradients();
  without.output.bias = {};
  EXPECT_EQ(message(std::move(without)), prefix + "expected output.bias float32 [6], got nothing");
}

}  // namespace
}  // namespace qkv::test
