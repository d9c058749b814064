// SPDX-License-Identifier: Apache-2.0
#include "models/validation.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/parallel.h"
#include "text/bleu.h"
#include "train/batches.h"

namespace qkv::models {
namespace {

constexpr Index kBatchTokens = 4096;

// The loss of these pairs; the translations of those that have texts go to their places.
app::TranslationLoss validate_batch(const app::TranslationModel& model, const EncodedPairs& pairs,
                                    std::span<const Index> batch, Context& context,
                                    std::span<app::TranslatedText> translations) {
  std::vector<app::TokenPair> all;
  std::vector<std::size_t> places;
  std::vector<std::string> sources;
  for (const Index n : batch) {
    all.push_back(pairs.pair(n));
    const auto place = static_cast<std::size_t>(n);
    if (place >= translations.size()) continue;
    places.push_back(place);
    sources.push_back(pairs.texts[place].source);
  }
  RunState run{Mode::kEvaluate};
  const app::TranslationLoss loss = model.translator.loss(all, run, context);
  if (sources.empty()) return loss;
  auto translated = translate(model, sources, {.attention = false}, context);
  for (std::size_t i = 0; i < places.size(); ++i) {
    translations[places[i]] = std::move(translated[i]);
  }
  return loss;
}

// Compares as `qkv score` does, so that its figures for the same pairs are the same.
void compare(const app::TranslationModel& model, std::span<const app::TextPair> texts,
             std::span<const app::TranslatedText> translations, app::ValidationScore& score) {
  app::BleuCounter bleu;
  for (std::size_t n = 0; n < texts.size(); ++n) {
    const auto reference = app::split_text(texts[n].target, model.tokenization, model.letters);
    std::vector<std::string> tokens = translations[n].target;
    if (translations[n].is_whole && !tokens.empty()) tokens.pop_back();
    bleu.add(tokens, reference);
    if (translations[n].is_whole && tokens == reference) ++score.exact;
  }
  score.bleu = bleu.result().score;
}

// Multiplicative hashing (Knuth, volume 3, section 6.4): updates that are multiples of the same
// number, as those of validations are, still reach different pairs.
std::size_t sample_of(Index update, std::size_t count) {
  return ((static_cast<std::uint64_t>(update) * 0x9E3779B97F4A7C15U) >> 32U) % count;
}

}  // namespace

app::ValidationScore validate(const app::TranslationModel& model, const EncodedPairs& pairs,
                              Index update, const Executor& executor,
                              const std::atomic<bool>* stop) {
  const auto batches = app::sorted_batches(pairs.lengths(), kBatchTokens);
  std::vector<app::TranslationLoss> losses(batches.size());
  std::vector<app::TranslatedText> translations(pairs.texts.size());
  for_each_task(executor, std::ssize(batches), [&](Index task) {
    Context context;
    context.set_stop_flag(stop);
    const auto n = static_cast<std::size_t>(task);
    losses[n] = validate_batch(model, pairs, batches[n], context, translations);
  });
  app::TranslationLoss sum;
  for (const app::TranslationLoss& loss : losses) {
    sum.log_probability += loss.log_probability;
    sum.tokens += loss.tokens;
  }
  app::ValidationScore score;
  score.loss = -sum.log_probability / static_cast<double>(sum.tokens);
  score.translated = std::ssize(pairs.texts);
  if (pairs.texts.empty()) return score;
  compare(model, pairs.texts, translations, score);
  const std::size_t shown = sample_of(update, pairs.texts.size());
  score.sample = {pairs.texts[shown].source, translations[shown].text, pairs.texts[shown].target};
  return score;
}

}  // namespace qkv::models
