// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <qkv/app/translation_model.h>
#include <qkv/layers/run.h>

namespace qkv::app {
namespace {

using Ids = std::vector<std::int32_t>;
using Tokens = std::vector<std::string>;

Tokens tokens_of(const TranslationModel& model, const std::string& text) {
  return split_text(text, model.tokenization, model.letters);
}

// The tokens as the model read or wrote them; unknown ones as typed.
TranslatedText text_of(const TranslationModel& model, Tokens source, Translation translation) {
  TranslatedText result;
  result.source = std::move(source);
  result.source.push_back(model.source.token(Vocabulary::kEnd));
  result.text = join_text(model.target.decode(translation.tokens), model.tokenization);
  for (const std::int32_t id : translation.tokens) result.target.push_back(model.target.token(id));
  result.log_probability = translation.log_probability;
  result.is_whole = !translation.tokens.empty() && translation.tokens.back() == Vocabulary::kEnd;
  result.attention = std::move(translation.attention);
  return result;
}

}  // namespace

std::vector<TranslatedText> translate(const TranslationModel& model,
                                      std::span<const std::string> texts,
                                      const SearchOptions& options, Context& context) {
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
  for (std::size_t i = 0; i < places.size(); ++i) {
    results[places[i]] = text_of(model, std::move(tokens[i]), std::move(translations[i]));
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
