// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_SCORE_REPORT_H_
#define QKV_COMMANDS_TRAIN_SCORE_REPORT_H_

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <qkv/app/translator.h>

#include "text/corpus_score.h"

// What `qkv score` found, as text and as JSON.

// Of the sentences with several references, each with its first one only: how the translations do,
// and how the next reference does in their place.
struct OneReference {
  qkv::app::CorpusScore translations{};
  qkv::app::CorpusScore humans{};
  qkv::app::Signature signature{};
};

// Other translations of the same sentences, and whether the difference could be chance.
struct Rival {
  std::string file{};
  qkv::app::CorpusScore score{};
  qkv::app::PairedTest p{};
  qkv::app::Resampling resampling{};
};

struct Scores {
  qkv::Index pairs = 0;
  std::optional<qkv::app::TranslationLoss> loss{};  // of a model on all pairs
  qkv::app::CorpusScore score{};
  qkv::app::Signature signature{};
  std::optional<OneReference> one_reference{};  // if a sentence has several
  std::optional<Rival> rival{};
};

std::string text_of(const Scores& scores);
nlohmann::ordered_json json_of(const Scores& scores);

#endif  // QKV_COMMANDS_TRAIN_SCORE_REPORT_H_
