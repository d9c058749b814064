// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_APP_SMALL_MODEL_H_
#define TESTS_APP_SMALL_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include <qkv/app/translation_model.h>
#include <qkv/layers/parameters.h>

namespace qkv::test {

using Texts = std::vector<std::string>;

inline app::Vocabulary vocabulary_of(const Texts& tokens) {
  app::VocabularyBuilder builder;
  builder.add(tokens);
  return builder.build();
}

// A model with random parameters that knows the characters a to d in sources and v to z in targets.
inline app::TranslationModel small_model(app::TranslatorConfig config = {},
                                         std::uint64_t seed = 1) {
  app::TranslationModel model{app::Translator({.source_tokens = 8, .target_tokens = 9}),
                              vocabulary_of({"a", "b", "c", "d"}),
                              vocabulary_of({"v", "w", "x", "y", "z"})};
  config.source_tokens = model.source.size();
  config.target_tokens = model.target.size();
  config.embedding = 4;
  config.hidden = 6;
  config.units = 5;
  config.heads = 2;
  model.translator = app::Translator(config);
  initialise(model.translator, seed);
  return model;
}

}  // namespace qkv::test

#endif  // TESTS_APP_SMALL_MODEL_H_
