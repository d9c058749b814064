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
  explicit Writer(const TranslationModel& model) : model_(model) {}

  // With the attention [target, source] unknown tokens are copied. A copied word keeps its
  // spelling: it comes after the capitals.
  std::string write(const std::string& text, const Translation& translation,
                    const ConstView& attention) const {
    const bool needs_capitals = model_.tokenizer.letters() == LetterCase::kLower;
    const bool has_words = model_.tokenizer.tokenization() == Tokenization::kWord;
    Tokens tokens = model_.target.decode(translation.tokens);
    if (needs_capitals && has_words) tokens = with_capitals(std::move(tokens), model_.style);
    if (attention.given()) {
      copy_unknown(model_.tokenizer.split_as_typed(text), translation, attention, tokens);
    };
    std::string written = model_.tokenizer.join(tokens, model_.style);
    return needs_capitals && !has_words ? with_capitals(written, model_.style) : written;
  }

 private:
  void copy_unknown(const Tokens& typed, const Translation& translation, const ConstView& attention,
                    Tokens& tokens) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (translation.tokens[i] != Vocabulary::kUnknown) continue;
      // The last column is the end token's, which is nothing to copy.
      const float* const row = attention.as<float>() + static_cast<Index>(i) * attention.size(1);
      tokens[i] =
          typed[static_cast<std::size_t>(std::max_element(row, row + std::ssize(typed)) - row)];
    }
  }

  const TranslationModel& model_;
};

// The attention of translations that have unknown tokens and did not keep it; absent for others.
// Few translations need it, and for all it takes much memory: these are repeated, together.
std::vector<Tensor> attention_of_unknown(const TranslationModel& model,
                                         std::span<const std::span<const std::int32_t>> sources,
                                         std::span<const Translation> translations,
                                         SearchOptions options, Context& context) {
  std::vector<Tensor> attention(translations.size());
  std::vector<std::size_t> places;
  std::vector<std::span<const std::int32_t>> repeated;
  for (std::size_t n = 0; n < translations.size(); ++n) {
    const Translation& one = translations[n];
    if (std::ranges::find(one.tokens, Vocabulary::kUnknown) == one.tokens.end()) continue;
    if (one.attention.given()) continue;
    places.push_back(n);
    repeated.push_back(sources[n]);
  }
  options.attention = true;
  auto again = model.translator.translate(repeated, options, context);
  for (std::size_t n = 0; n < places.size(); ++n) {
    attention[places[n]] = std::move(again[n].attention);
  }
  return attention;
}

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
  std::vector<Tensor> attention(translations.size());
  if (copies) attention = attention_of_unknown(model, sources, translations, options, context);
  const Writer writer(model);
  for (std::size_t i = 0; i < places.size(); ++i) {
    ConstView looked;
    if (copies) looked = attention[i].given() ? attention[i] : translations[i].attention;
    std::string text = writer.write(texts[places[i]], translations[i], looked);
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
