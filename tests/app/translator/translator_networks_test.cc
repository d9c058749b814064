// SPDX-License-Identifier: Apache-2.0
// Tests encoders of several layers, and an output that shares the target embedding's weight.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/app/translator/learned.h"
#include "tests/app/translator/translators.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

using app::TiedEmbeddings;
using app::TranslationLoss;
using app::TranslatorConfig;
using app::TranslatorGradients;

TranslatorConfig tied(TranslatorConfig config) {
  return with(config, {1, TiedEmbeddings::kOutput});
}

TEST(TranslatorNetworks, ParametersAreListedOnce) {
  const TranslatorConfig config = small_config(TranslatorAttention::kDot);
  const std::vector<std::string> plain = names_of(Translator(config));
  EXPECT_EQ(plain, (std::vector<std::string>{"source_embedding.weight [7,3]",
                                             "encoder.weight_ih_l0 [12,3]",
                                             "encoder.weight_hh_l0 [12,4]",
                                             "encoder.bias_ih_l0 [12]",
                                             "encoder.bias_hh_l0 [12]",
                                             "encoder.weight_ih_l0_reverse [12,3]",
                                             "encoder.weight_hh_l0_reverse [12,4]",
                                             "encoder.bias_ih_l0_reverse [12]",
                                             "encoder.bias_hh_l0_reverse [12]",
                                             "start.weight [4,4]",
                                             "start.bias [4]",
                                             "attention.k.weight [4,8]",
                                             "target_embedding.weight [6,3]",
                                             "decoder.weight_ih [12,11]",
                                             "decoder.weight_hh [12,4]",
                                             "decoder.bias_ih [12]",
                                             "decoder.bias_hh [12]",
                                             "readout.weight [8,15]",
                                             "readout.bias [8]",
                                             "output.weight [6,4]",
                                             "output.bias [6]"}));

  // A tied network has one matrix less, and its readout has as many pairs as an embedding has
  // channels.
  std::vector<std::string> want = plain;
  std::erase(want, "output.weight [6,4]");
  std::ranges::replace(want, "readout.weight [8,15]", "readout.weight [6,15]");
  std::ranges::replace(want, "readout.bias [8]", "readout.bias [6]");
  const Translator one(tied(config));
  EXPECT_EQ(names_of(one), want);
  EXPECT_EQ(names_of(one.zero_gradients()), want);

  // Upper layers read both directions of the layer below.
  std::vector<std::string> more;
  for (const char* direction : {"", "_reverse"}) {
    for (const char* name :
         {"weight_ih_l1# [12,8]", "weight_hh_l1# [12,4]", "bias_ih_l1# [12]", "bias_hh_l1# [12]"}) {
      std::string text = std::string("encoder.") + name;
      more.push_back(text.replace(text.find('#'), 1, direction));
    }
  }
  want = plain;
  want.insert(want.begin() + 9, more.begin(), more.end());
  EXPECT_EQ(names_of(Translator(with(config, {2, TiedEmbeddings::kNone}))), want);
}

// Every parameter is within 1 / sqrt(count of inputs that are summed), and some are near that
// bound.
TEST(TranslatorNetworks, ATiedWeightIsDrawnAsAnOutput) {
  const auto largest = [](const TranslatorConfig& config, const std::string& name) {
    Translator translator(config);
    initialise(translator, 1);
    double most = 0;
    for_each_parameter(translator, [&](const auto& p) {
      if (p.name != name) return;
      for (const double value : values_of(p.value)) most = std::max(most, std::fabs(value));
    });
    return most;
  };
  TranslatorConfig config = small_config(TranslatorAttention::kAdditive);
  config.target_tokens = 50;
  config.embedding = 25;
  config.hidden = 4;
  const auto expect = [&](const TranslatorConfig& c, const std::string& name, double bound) {
    EXPECT_LT(largest(c, name), bound) << name;
    EXPECT_GT(largest(c, name), 0.8 * bound) << name;
  };
  expect(config, "target_embedding.weight", 1);
  expect(config, "output.bias", 0.5);
  expect(tied(config), "target_embedding.weight", 0.2);
  expect(tied(config), "output.bias", 0.2);
  expect(tied(config), "source_embedding.weight", 1);
}

// Compares a tied model with one that has two matrices of equal numbers, which needs equal sizes of
// hidden and embedding. The tied matrix's gradient is the sum of the gradients of the two matrices.
TEST(TranslatorNetworks, ATiedGradientIsTheSumOfBothUses) {
  for (const TranslatorAttention attention : kEveryAttention) {
    for (const Mode mode : {Mode::kEvaluate, Mode::kTrain}) {
      TranslatorConfig config = small_config(attention);
      config.embedding = config.hidden;
      const Translator one = random_translator(tied(config));
      Translator two(config);
      std::map<std::string, const Tensor*> of_one;
      for_each_parameter(one, [&](const auto& p) { of_one[p.name] = &p.value; });
      for_each_parameter(two, [&](const auto& p) {
        const bool output = p.name == "output.weight";
        copy(*of_one.at(output ? "target_embedding.weight" : p.name), p.value);
      });
      const Learned got = learn(one, some_pairs(), {mode, 7, 1});
      const Learned want = learn(two, some_pairs(), {mode, 7, 1});
      EXPECT_EQ(got.loss.loss, want.loss.loss) << replay_of(attention);
      auto parts = values_by_name(want.gradients);
      const std::vector<double> as_output = parts.at("output.weight");
      parts.erase("output.weight");
      std::vector<double>& sum = parts.at("target_embedding.weight");
      for (const std::vector<double>& use : {sum, as_output}) {
        EXPECT_TRUE(std::ranges::any_of(use, [](double d) { return std::fabs(d) > 1e-2; }));
      }
      for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += as_output[n];
      const auto all = values_by_name(got.gradients);
      ASSERT_EQ(all.size(), parts.size());
      for (const auto& [name, values] : parts) {
        for (std::size_t n = 0; n < values.size(); ++n) {
          EXPECT_NEAR(all.at(name)[n], values[n], 1e-13) << name << ", " << replay_of(attention);
        }
      }
    }
  }
}

// The gradients hold NaN before the call: if the call added to them, they would stay NaN.
TEST(TranslatorNetworks, GradientsAreOverwritten) {
  const double nan = std::nan("");
  for (const Network& network : kEveryNetwork) {
    const TranslatorConfig config = with(small_config(TranslatorAttention::kMultiHead), network);
    const Translator translator = random_translator(config);
    const Learned want = learn(translator, some_pairs(), {Mode::kTrain, 7, 1});
    TranslatorGradients gradients = translator.zero_gradients();
    for_each_parameter(gradients, [&](const auto& p) { copy(ConstView(&nan, {1}), p.value); });
    RunState run{Mode::kTrain, 7, 1};
    Context context;
    translator.loss_and_gradients(some_pairs(), run, gradients, context);
    EXPECT_EQ(all_bytes(gradients), all_bytes(want.gradients)) << replay_of(config);
    translator.loss_and_gradients({}, run, gradients, context);
    EXPECT_EQ(all_bytes(gradients), all_bytes(translator.zero_gradients())) << replay_of(config);
  }
}

}  // namespace
}  // namespace qkv::test
