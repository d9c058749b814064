// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <qkv/app/translation_model.h>
#include <qkv/error.h>
#include <qkv/layers/run.h>

namespace qkv::app {
namespace {

using Ids = std::vector<std::int32_t>;
using Tokens = std::vector<std::string>;

Tokens tokens_of(const TranslationModel& model, const std::string& text) {
  return model.tokenizer.split(text);
}

// Whether unknown tokens are copied. Throws Error if they cannot be.
bool copies_unknown(const TranslationModel& model, UnknownTokens unknown) {
  const bool looks = model.translator.config().attention != TranslatorAttention::kNone;
  if (unknown == UnknownTokens::kCopied && !looks) {
    throw Error("translate", "unknown",
                "must not be kCopied for a model without attention, which does not look at a "
                "source token that could be copied");
  }
  return unknown != UnknownTokens::kKept && looks;
}

// Writes translations of texts as people do.
class Writer {
 public:
  Writer(const TranslationModel& model, const SearchOptions& options, Context& context)
      : model_(model), options_(options), context_(context) {
    options_.attention = true;
  }

  // A copied word keeps its spelling: it comes after the capitals.
  std::string write(const std::string& text, std::span<const std::int32_t> source,
                    const Translation& translation, bool copies) const {
    const bool needs_capitals = model_.tokenizer.letters() == LetterCase::kLower;
    const bool has_words = model_.tokenizer.tokenization() == Tokenization::kWord;
    Tokens tokens = model_.target.decode(translation.tokens);
    if (needs_capitals && has_words) tokens = with_capitals(std::move(tokens), model_.style);
    if (copies) copy_unknown(model_.tokenizer.split_as_typed(text), source, translation, tokens);
    std::string written = model_.tokenizer.join(tokens, model_.style);
    return needs_capitals && !has_words ? with_capitals(written, model_.style) : written;
  }

 private:
  // Replaces the unknown tokens of a translation.
  void copy_unknown(const Tokens& typed, std::span<const std::int32_t> source,
                    const Translation& translation, Tokens& tokens) const {
    if (std::ranges::find(translation.tokens, Vocabulary::kUnknown) == translation.tokens.end()) {
      return;
    }
    // Few translations need it, and for all it takes much memory: where it was not kept, this one
    // is repeated.
    Tensor again;
    if (!translation.attention.given()) {
      again = std::move(model_.translator.translate({&source, 1}, options_, context_)[0].attention);
    }
    const Tensor& attention = again.given() ? again : translation.attention;  // [target, source]
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (translation.tokens[i] != Vocabulary::kUnknown) continue;
      // The last column is the end token's, which is nothing to copy.
      const auto row = attention.values<float>().subspan(i * source.size(), typed.size());
      tokens[i] = typed[static_cast<std::size_t>(std::ranges::max_element(row) - row.begin())];
    }
  }

  const TranslationModel& model_;
  SearchOptions options_;
  Context& context_;
};

// The tokens as the model read or wrote them; unknown ones as typed.
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
  const bool copies = copies_unknown(model, unknown);
  std::vector<TranslatedText> results(texts.size());
  std::vector<Tokens> tokens;
  std::vector<Ids> ids;
  std::vector<std::size_t> places;  // indices into `results`
  for (std::size_t n = 0; n < texts.size(); ++n) {
    Tokens source = tokens_of(model, texts[n]);
    if (source.empty()) continue;
    ids.push_back(model.source.encode(source));
    tokens.push_back(std::move(source));
    places.push_back(n);
  }
  const std::vector<std::span<const std::int32_t>> sources(ids.begin(), ids.end());
  std::vector<Translation> translations = model.translator.translate(sources, options, context);
  const Writer writer(model, options, context);
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::string text = writer.write(texts[places[i]], sources[i], translations[i], copies);
    TranslatedText& result = results[places[i]];
    result = text_of(model, std::move(tokens[i]), std::move(translations[i]));
    result.text = std::move(text);
  }
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
