// SPDX-License-Identifier: Apache-2.0
#include "models/validation.h"

#include <algorithm>
#include <span>
#include <vector>

#include "models/parallel.h"
#include "train/batches.h"

namespace qkv::models {
namespace {

constexpr Index kBatchTokens = 4096;

struct Part {
  app::TranslationLoss loss{};
  Index exact = 0;
};

// How many of these pairs are translated into exactly their targets.
Index exact_translations(const app::Translator& translator, std::span<const app::TokenPair> pairs,
                         Context& context) {
  std::vector<std::span<const std::int32_t>> sources;
  for (const app::TokenPair& pair : pairs) sources.push_back(pair.source);
  const std::vector<app::Translation> translations =
      translator.translate(sources, {.attention = false}, context);
  Index exact = 0;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    if (std::ranges::equal(translations[n].tokens, pairs[n].target)) ++exact;
  }
  return exact;
}

}  // namespace

app::ValidationScore validate(const app::Translator& translator, const EncodedPairs& pairs,
                              const Executor& executor, const std::atomic<bool>* stop) {
  const auto batches = app::sorted_batches(pairs.lengths(), kBatchTokens);
  std::vector<Part> parts(batches.size());
  for_each_task(executor, std::ssize(batches), [&](Index task) {
    Context context;
    context.set_stop_flag(stop);
    std::vector<app::TokenPair> all;
    std::vector<app::TokenPair> translated;
    for (const Index n : batches[static_cast<std::size_t>(task)]) {
      all.push_back(pairs.pair(n));
      if (n < kMostTranslated) translated.push_back(pairs.pair(n));
    }
    RunState run{Mode::kEvaluate};
    Part& part = parts[static_cast<std::size_t>(task)];
    part.loss = translator.loss(all, run, context);
    if (!translated.empty()) part.exact = exact_translations(translator, translated, context);
  });
  app::TranslationLoss sum;
  app::ValidationScore score;
  for (const Part& part : parts) {
    sum.log_probability += part.loss.log_probability;
    sum.tokens += part.loss.tokens;
    score.exact += part.exact;
  }
  score.loss = -sum.log_probability / static_cast<double>(sum.tokens);
  score.translated = std::min(pairs.facts.pairs, kMostTranslated);
  return score;
}

}  // namespace qkv::models
