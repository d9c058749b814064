// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_APP_TRANSLATOR_LEARNED_H_
#define QKV_TESTS_APP_TRANSLATOR_LEARNED_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/translator.h>

#include "tests/app/translator/translators.h"
#include "tests/support/compare.h"

// Loss and gradients of a translator on sentence pairs, and their comparison.
namespace qkv::test {

struct Learned {
  app::TranslationLoss loss;
  app::TranslatorGradients gradients;
};

inline Learned learn(const Translator& translator, const std::vector<app::TokenPair>& pairs,
                     RunState run = {}, int threads = 1) {
  Context context(Executor::threads(threads));
  Learned result{{}, translator.zero_gradients()};
  result.loss = translator.loss_and_gradients(pairs, run, result.gradients, context);
  return result;
}

using ValuesByName = std::map<std::string, std::vector<double>>;

inline ValuesByName values_by_name(const app::TranslatorGradients& gradients) {
  ValuesByName all;
  for_each_parameter(gradients, [&](const auto& p) { all[p.name] = values_of(p.value); });
  return all;
}

// Expects that the error of each gradient is at most `bound` times the gradient's largest number,
// or times 0.1 if no number is larger.
inline void expect_gradients(const app::TranslatorGradients& got, const ValuesByName& want,
                             double bound, const std::string& replay) {
  const ValuesByName values = values_by_name(got);
  ASSERT_EQ(values.size(), want.size()) << replay;
  for (const auto& [name, numbers] : want) {
    double largest = 0.1;
    for (const double number : numbers) largest = std::max(largest, std::fabs(number));
    const std::span<const double> of_got = values.at(name);
    EXPECT_TRUE(compare(name, of_got, numbers, {0, bound * largest}, replay));
  }
}

// Expects that the loss and gradients of several sentence pairs are the sums of the losses and
// gradients of each pair alone.
inline void expect_sum_of_pairs(const Translator& translator,
                                const std::vector<app::TokenPair>& pairs, double bound,
                                const std::string& replay) {
  ValuesByName gradients;
  app::TranslationLoss sum;
  for (const app::TokenPair& pair : pairs) {
    const Learned one = learn(translator, {pair});
    sum.loss += one.loss.loss;
    sum.log_probability += one.loss.log_probability;
    sum.tokens += one.loss.tokens;
    for (const auto& [name, numbers] : values_by_name(one.gradients)) {
      std::vector<double>& to = gradients[name];
      to.resize(numbers.size());
      for (std::size_t n = 0; n < to.size(); ++n) to[n] += numbers[n];
    }
  }
  const Learned all = learn(translator, pairs);
  EXPECT_NEAR(all.loss.loss, sum.loss, 1e-12 * sum.loss) << replay;
  EXPECT_NEAR(all.loss.log_probability, sum.log_probability, -1e-12 * sum.log_probability)
      << replay;
  EXPECT_EQ(all.loss.tokens, sum.tokens) << replay;
  expect_gradients(all.gradients, gradients, bound, replay);
}

}  // namespace qkv::test

#endif  // QKV_TESTS_APP_TRANSLATOR_LEARNED_H_
