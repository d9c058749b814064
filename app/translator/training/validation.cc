// SPDX-License-Identifier: Apache-2.0
#include "translator/training/validation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ranks/collective.h"
#include "text/corpus_score.h"
#include "text/tokenize_13a.h"
#include "translator/data/batches.h"
#include "translator/passes/parallel.h"

namespace qkv::app {
namespace {

constexpr Index kBatchTokens = 4096;

constexpr Index kNotTranslated = -1;

// For each sentence pair, the index in pairs.sentences of the sentence whose first pair it is, else
// kNotTranslated.
std::vector<Index> sentences_of_pairs(const EncodedPairs& pairs) {
  std::vector<Index> sentences(pairs.source.size(), kNotTranslated);
  for (std::size_t n = 0; n < pairs.sentences.size(); ++n) {
    sentences[static_cast<std::size_t>(pairs.sentences[n].pair)] = static_cast<Index>(n);
  }
  return sentences;
}

// Computes the loss of a batch of sentence pairs, and writes the translation of each sentence whose
// first pair is among them to its index in `translations`.
TranslationLoss validate_batch(const TranslationModel& model, const EncodedPairs& pairs,
                               std::span<const Index> batch,
                               std::span<const Index> sentence_of_pair, Context& context,
                               std::span<std::string> translations) {
  std::vector<TokenPair> all;
  std::vector<std::size_t> indices;
  std::vector<std::string> sources;
  for (const Index n : batch) {
    all.push_back(pairs.pair(n));
    const Index sentence = sentence_of_pair[static_cast<std::size_t>(n)];
    if (sentence == kNotTranslated) continue;
    indices.push_back(static_cast<std::size_t>(sentence));
    sources.push_back(pairs.sentences[indices.back()].text.source);
  }
  RunState run{Mode::kEvaluate};
  const TranslationLoss loss = model.translator.loss(all, run, context);
  if (sources.empty()) return loss;
  const SearchOptions search{.attention = false, .scores = SearchScores::kIfCompared};
  auto translated = translate(model, sources, search, context);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    translations[indices[i]] = std::move(translated[i].text);
  }
  return loss;
}

// Scores as `qkv score` does, so that both give equal figures for equal sentences.
CorpusScore compare(std::span<const TranslatedSentence> sentences,
                    std::span<const std::string> translations) {
  std::vector<SentenceCounts> counts;
  for (std::size_t n = 0; n < sentences.size(); ++n) {
    counts.push_back(sentence_counts(translations[n], sentences[n].text.references));
  }
  return corpus_score(counts);
}

// True if a reference has at least as many tokens as the longest n-grams of BLEU.
bool has_bleu(std::span<const TranslatedSentence> sentences) {
  return std::ranges::any_of(sentences, [](const TranslatedSentence& sentence) {
    return std::ranges::any_of(sentence.text.references, [](const std::string& reference) {
      return std::ssize(tokenize_13a(reference)) >= kBleuOrders;
    });
  });
}

// Gives every rank the results of all ranks. On entry, a rank has the losses and translations of
// its own batches; other losses are zero, and other translations empty.
void share(Ranks& ranks, std::vector<TranslationLoss>& losses,
           std::vector<std::string>& translations) {
  if (ranks.count() == 1) return;
  std::string mine(losses.size() * sizeof(TranslationLoss), '\0');
  std::memcpy(mine.data(), losses.data(), mine.size());
  const std::vector<std::string> all = ranks::all_texts(ranks, mine);
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t n = r; n < losses.size(); n += all.size()) {
      std::memcpy(&losses[n], all[r].data() + n * sizeof(TranslationLoss), sizeof(TranslationLoss));
    }
  }
  for (const std::string& joined : ranks::all_texts(ranks, ranks::joined(translations))) {
    std::vector<std::string> of_rank = ranks::split(joined);
    for (std::size_t n = 0; n < translations.size(); ++n) {
      if (!of_rank[n].empty()) translations[n] = std::move(of_rank[n]);
    }
  }
}

// The index of the sentence to show, by multiplicative hashing (Knuth, volume 3, section 6.4).
// Validations often occur at multiples of some number of updates; update % count could then show
// the same few sentences.
std::size_t sample_of(Index update, std::size_t count) {
  return ((static_cast<std::uint64_t>(update) * 0x9E3779B97F4A7C15U) >> 32U) % count;
}

}  // namespace

ValidationScore validate(const TranslationModel& model, const EncodedPairs& pairs, Index update,
                         const Executor& executor, const std::atomic<bool>* stop, Ranks& ranks) {
  const auto batches = sorted_batches(pairs.lengths(), kBatchTokens);
  std::vector<TranslationLoss> losses(batches.size());
  const std::vector<Index> sentence_of_pair = sentences_of_pairs(pairs);
  std::vector<std::string> translations(pairs.sentences.size());
  // Batches ascend in length: every rank gets short and long ones.
  std::vector<Index> mine;
  for (Index n = ranks.rank(); n < std::ssize(batches); n += ranks.count()) mine.push_back(n);
  bool is_cancelled = false;
  try {
    for_each_task(executor, std::ssize(mine), [&](Index task) {
      Context context;
      context.set_stop_flag(stop);
      const auto n = static_cast<std::size_t>(mine[static_cast<std::size_t>(task)]);
      losses[n] = validate_batch(model, pairs, batches[n], sentence_of_pair, context, translations);
    });
  } catch (const Cancelled&) {
    is_cancelled = true;
  }
  // A rank without a batch has not looked at its flag. A single rank that has finished keeps its
  // result even if the flag is set now.
  is_cancelled |= ranks.count() > 1 && stop != nullptr && stop->load(std::memory_order_relaxed);
  if (ranks::any(ranks, is_cancelled)) throw Cancelled("validate");
  share(ranks, losses, translations);
  TranslationLoss sum;
  for (const TranslationLoss& loss : losses) {
    sum.log_probability += loss.log_probability;
    sum.tokens += loss.tokens;
  }
  ValidationScore score;
  score.loss = -sum.log_probability / static_cast<double>(sum.tokens);
  score.translated = std::ssize(pairs.sentences);
  if (pairs.sentences.empty()) return score;
  const CorpusScore compared = compare(pairs.sentences, translations);
  score.bleu = compared.bleu.score;
  score.has_bleu = has_bleu(pairs.sentences);
  score.exact = compared.exact;
  const std::size_t shown = sample_of(update, pairs.sentences.size());
  const Sentence& sentence = pairs.sentences[shown].text;
  score.sample = {sentence.source, translations[shown], sentence.references[0]};
  return score;
}

}  // namespace qkv::app
