// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_APP_TRANSLATOR_TRANSLATORS_H_
#define QKV_TESTS_APP_TRANSLATOR_TRANSLATORS_H_

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <qkv/app/translator.h>

#include "core/storage.h"
#include "tests/layers/support.h"
#include "translator/passes/attention_form.h"

// Translators and sentences that the tests of the models share.
namespace qkv::test {

using app::Translator;
using app::TranslatorAttention;

using Tokens = std::vector<std::int32_t>;

inline constexpr std::array kEveryAttention{
    TranslatorAttention::kAdditive,  TranslatorAttention::kDot,
    TranslatorAttention::kScaledDot, TranslatorAttention::kBilinear,
    TranslatorAttention::kMultiHead, TranslatorAttention::kNone};

// The names of an attention and a dtype, for messages.
inline std::string replay_of(TranslatorAttention attention, DType dtype = DType::kFloat64) {
  return std::string(app::form_of(attention).name) + " " + std::string(name_of(dtype));
}

// A configuration whose sizes all differ, so that none can be confused with another.
inline app::TranslatorConfig small_config(TranslatorAttention attention,
                                          DType dtype = DType::kFloat64) {
  app::TranslatorConfig config;
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

// A network's count of encoder layers, 1 to 3, and whether its output weight is its own or the
// target embedding's.
struct Network {
  Index encoder_layers = 1;
  app::TiedEmbeddings tied = app::TiedEmbeddings::kNone;
};
inline constexpr Network kEveryNetwork[] = {{1, app::TiedEmbeddings::kNone},
                                            {2, app::TiedEmbeddings::kNone},
                                            {1, app::TiedEmbeddings::kOutput},
                                            {3, app::TiedEmbeddings::kOutput}};

inline app::TranslatorConfig with(app::TranslatorConfig config, const Network& network) {
  config.encoder_layers = network.encoder_layers;
  config.tied_embeddings = network.tied;
  return config;
}

inline std::string replay_of(const app::TranslatorConfig& c) {
  return replay_of(c.attention, c.dtype) + ", " + std::to_string(c.encoder_layers) + " layers" +
         (c.tied_embeddings == app::TiedEmbeddings::kOutput ? ", tied" : "");
}

// The configurations of every attention with every network.
inline std::vector<app::TranslatorConfig> every_config(DType dtype = DType::kFloat64) {
  std::vector<app::TranslatorConfig> configs;
  for (const TranslatorAttention attention : kEveryAttention) {
    for (const Network& network : kEveryNetwork) {
      configs.push_back(with(small_config(attention, dtype), network));
    }
  }
  return configs;
}

// Sizes that exceed whole registers and tiles by one, or by two if two heads must divide them.
inline app::TranslatorConfig odd_config(TranslatorAttention attention, DType dtype) {
  auto config = small_config(attention, dtype);
  config.embedding = 9;
  config.hidden = attention == TranslatorAttention::kMultiHead ? 34 : 33;
  config.units = 17;
  return config;
}

// A translator with normally distributed parameters, so large that gates and softmax are far from
// flat, and so small that third derivatives are small.
inline Translator random_translator(const app::TranslatorConfig& config, std::uint64_t seed = 3,
                                    double size = 0.6) {
  Translator translator(config);
  for_each_parameter(translator, [&](const auto& p) {
    fill_normal(p.value, ++seed);
    for (Index n = 0; n < p.value.element_count(); ++n) {
      core::store(config.dtype, p.value.view().data(), n,
                  size * core::load<double>(config.dtype, p.value.view().data(), n));
    }
  });
  return translator;
}

// Sentences of 1 to 12 tokens of small_config(), the end token last, in no order of length.
inline std::vector<Tokens> many_sentences(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Tokens> all(count);
  for (Tokens& sentence : all) {
    sentence.resize(random() % 12);
    for (std::int32_t& token : sentence) token = 3 + static_cast<std::int32_t>(random() % 3);
    sentence.push_back(2);
  }
  return all;
}

// The sources of three sentence pairs of different lengths, in the vocabularies of small_config().
inline const std::vector<Tokens>& some_sources() {
  static const std::vector<Tokens> all{{4, 5, 6, 2}, {3, 2}, {6, 6, 4, 5, 3, 2}};
  return all;
}
inline const std::vector<Tokens>& some_targets() {
  static const std::vector<Tokens> all{{4, 2}, {5, 4, 3, 5, 2}, {3, 5, 2}};
  return all;
}

inline std::vector<app::TokenPair> pairs_of(const std::vector<Tokens>& sources,
                                            const std::vector<Tokens>& targets) {
  std::vector<app::TokenPair> pairs;
  for (std::size_t n = 0; n < sources.size(); ++n) pairs.push_back({sources[n], targets[n]});
  return pairs;
}
inline std::vector<app::TokenPair> some_pairs() { return pairs_of(some_sources(), some_targets()); }

inline std::vector<std::span<const std::int32_t>> lists_of(const std::vector<Tokens>& all) {
  return {all.begin(), all.end()};
}

}  // namespace qkv::test

#endif  // QKV_TESTS_APP_TRANSLATOR_TRANSLATORS_H_
