// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include "tests/layers/gradients.h"
#include "tests/models/translators.h"

namespace qkv::test {
namespace {

using app::TranslationLoss;

TEST(Translator, GradientsAreDerivatives) {
  for (const TranslatorAttention attention : kEveryAttention) {
    for (const Mode mode : {Mode::kEvaluate, Mode::kTrain}) {
      Translator translator = random_translator(small_config(attention));
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
        expect_gradient({p.name, p.value, gradient}, again, replay_of(attention));
      });
      Index all = 0;
      for_each_parameter(translator, [&](const auto&) { ++all; });
      EXPECT_EQ(seen, all);
    }
  }
}

}  // namespace
}  // namespace qkv::test
