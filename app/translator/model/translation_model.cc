// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <qkv/app/translation_model.h>
#include <qkv/error.h>
#include <qkv/layers/run.h>

#include "text/text.h"
#include "translator/passes/parallel.h"

namespace qkv::app {
namespace {

using Ids = std::vector<std::int32_t>;
using Tokens = std::vector<std::string>;

// The tokens of a text. A text without visible characters has none, since a character model would
// invent a translation for the blanks.
Tokens tokens_of(const TranslationModel& model, const std::string& text) {
  Tokens tokens = model.tokenizer.split(text);
  return is_blank(text) ? Tokens() : tokens;
}

// True if unknown tokens are copied. Throws Error if the caller requires copies and the model does
// not attend to source tokens.
bool copies_unknown(const TranslationModel& model, UnknownTokens unknown) {
  const bool attends = model.translator.config().attention != TranslatorAttention::kNone;
  if (unknown == UnknownTokens::kCopied && !attends) {
    throw Error("translate", "unknown",
                "must not be kCopied for a model without attention, which attends to no source "
                "token that could be copied");
  }
  return unknown != UnknownTokens::kKept && attends;
}

// Writes the text of translations with spaces and capitals.
class Writer {
 public:
  explicit Writer(const TranslationModel& model) : model_(model) {}

  // The translation of `text` as text. Unknown tokens are copied if the translation has their
  // source tokens. Word models restore capitals before copying: copied words keep their spelling.
  std::string write(const std::string& text, const Translation& translation) const {
    const bool needs_capitals = model_.tokenizer.letters() == LetterCase::kLower;
    const bool has_words = model_.tokenizer.tokenization() == Tokenization::kWord;
    Tokens tokens = model_.target.decode(translation.tokens);
    if (needs_capitals && has_words) tokens = with_capitals(std::move(tokens), model_.style);
    if (!translation.unknown_sources.empty()) {
      copy_unknown(model_.tokenizer.split_as_typed(text), translation, tokens);
    }
    std::string written = model_.tokenizer.join(tokens, model_.style);
    return needs_capitals && !has_words ? with_capitals(written, model_.style) : written;
  }

 private:
  static void copy_unknown(const Tokens& typed, const Translation& translation, Tokens& tokens) {
    auto source = translation.unknown_sources.begin();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (translation.tokens[i] != Vocabulary::kUnknown) continue;
      tokens[i] = typed[static_cast<std::size_t>(*source++)];
    }
  }

  const TranslationModel& model_;
};

// Returns a result whose `text` is still empty. Its source has the tokenizer's tokens, even those
// that the vocabulary lacks, and the end token. Its target has "<unk>" for unknown tokens.
TranslatedText text_of(const TranslationModel& model, Tokens source, Translation translation) {
  TranslatedText result;
  result.source = std::move(source);
  result.source.push_back(model.source.token(Vocabulary::kEnd));
  for (const std::int32_t id : translation.tokens) result.target.push_back(model.target.token(id));
  result.log_probability = translation.log_probability;
  result.is_whole = !translation.tokens.empty() && translation.tokens.back() == Vocabulary::kEnd;
  result.attention = std::move(translation.attention);
  return result;
}

}  // namespace

std::vector<TranslatedText> translate(const TranslationModel& model,
                                      std::span<const std::string> texts,
                                      const SearchOptions& options, Context& context,
                                      UnknownTokens unknown) {
  SearchOptions search = options;
  if (copies_unknown(model, unknown)) search.unknown = UnknownSources::kFound;
  const std::atomic<bool>* const stop = context.stop_flag();
  const auto for_each = [&](std::size_t count, const auto& f) {
    for_each_task(context.executor(), static_cast<Index>(count), [&](Index n) {
      if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Cancelled("translate");
      f(static_cast<std::size_t>(n));
    });
  };
  std::vector<Tokens> tokens(texts.size());
  std::vector<Ids> ids(texts.size());
  for_each(texts.size(), [&](std::size_t n) {
    tokens[n] = tokens_of(model, texts[n]);
    if (!tokens[n].empty()) ids[n] = model.source.encode(tokens[n]);
  });
  std::vector<std::span<const std::int32_t>> sources;
  std::vector<std::size_t> text_indices;  // the index in `texts` of each of `sources`
  for (std::size_t n = 0; n < texts.size(); ++n) {
    if (tokens[n].empty()) continue;
    sources.emplace_back(ids[n]);
    text_indices.push_back(n);
  }
  std::vector<Translation> translations = model.translator.translate(sources, search, context);
  std::vector<TranslatedText> results(texts.size());
  const Writer writer(model);
  for_each(text_indices.size(), [&](std::size_t i) {
    const std::size_t n = text_indices[i];
    std::string text = writer.write(texts[n], translations[i]);
    results[n] = text_of(model, std::move(tokens[n]), std::move(translations[i]));
    results[n].text = std::move(text);
  });
  return results;
}

TranslationLoss loss(const TranslationModel& model, std::span<const TextPair> pairs,
                     Context& context) {
  std::vector<std::pair<Ids, Ids>> ids;
  for (const TextPair& pair : pairs) {
    ids.emplace_back(model.source.encode(tokens_of(model, pair.source)),
                     model.target.encode(tokens_of(model, pair.target)));
  }
  std::vector<TokenPair> views;
  views.reserve(ids.size());
  for (const auto& [source, target] : ids) views.push_back({source, target});
  RunState run;
  return model.translator.loss(views, run, context);
}

}  // namespace qkv::app
