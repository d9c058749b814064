// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/translator.h>
#include <qkv/app/vocabulary.h>

#include "tests/layers/gradients.h"
#include "tests/layers/support.h"

namespace qkv::test {
namespace {

using app::TokenPair;
using app::TranslationLoss;
using app::Translator;
using app::TranslatorAttention;
using app::TranslatorConfig;

constexpr TranslatorAttention kAll[] = {
    TranslatorAttention::kAdditive,  TranslatorAttention::kDot,
    TranslatorAttention::kScaledDot, TranslatorAttention::kBilinear,
    TranslatorAttention::kMultiHead, TranslatorAttention::kNone};

TranslatorConfig small(TranslatorAttention attention, DType dtype) {
  TranslatorConfig config;
  config.attention = attention;
  config.source_tokens = 7;
  config.target_tokens = 6;
  config.embedding = 3;
  config.hidden = 4;
  config.units = 5;
  config.heads = 2;
  config.dropout = 0.2;
  config.dtype = dtype;
  return config;
}

Translator random_translator(const TranslatorConfig& config) {
  Translator translator(config);
  std::uint64_t seed = 3;
  // Of a size at which gates and softmax are far from flat, and third derivatives still small.
  for_each_parameter(translator, [&](const auto& p) {
    fill_normal(p.value, ++seed);
    for (Index n = 0; n < p.value.element_count(); ++n) {
      core::store(config.dtype, p.value.view().data(), n,
                  0.6 * core::load<double>(config.dtype, p.value.view().data(), n));
    }
  });
  return translator;
}

const std::vector<std::vector<std::int32_t>>& sources() {
  static const std::vector<std::vector<std::int32_t>> all{{4, 5, 6, 2}, {3, 2}, {6, 6, 4, 5, 3, 2}};
  return all;
}
const std::vector<std::vector<std::int32_t>>& targets() {
  static const std::vector<std::vector<std::int32_t>> all{{4, 2}, {5, 4, 3, 5, 2}, {3, 5, 2}};
  return all;
}

std::vector<TokenPair> pairs(std::size_t first = 0, std::size_t count = 3) {
  std::vector<TokenPair> some;
  for (std::size_t n = first; n < first + count; ++n) some.push_back({sources()[n], targets()[n]});
  return some;
}

TEST(Translator, GradientsAreDerivatives) {
  for (const TranslatorAttention attention : kAll) {
    for (const Mode mode : {Mode::kEvaluate, Mode::kTrain}) {
      Translator translator = random_translator(small(attention, DType::kFloat64));
      Context context;
      auto gradients = translator.zero_gradients();
      RunState run{mode, 11, 3};
      const TranslationLoss loss = translator.loss_and_gradients(pairs(), run, gradients, context);
      EXPECT_EQ(loss.tokens, 10);
      auto again = [&] {
        RunState same{mode, 11, 3};
        return translator.loss(pairs(), same, context).loss;
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
        expect_gradient({p.name, p.value, gradient}, again,
                        "attention " + std::to_string(static_cast<int>(attention)));
      });
      Index all = 0;
      for_each_parameter(translator, [&](const auto&) { ++all; });
      EXPECT_EQ(seen, all);
    }
  }
}

}  // namespace
}  // namespace qkv::test
