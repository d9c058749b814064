// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_SCORE_REPORT_H_
#define QKV_COMMANDS_TRAIN_SCORE_REPORT_H_

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <qkv/app/translator.h>

#include "text/corpus_score.h"

// The results of `qkv score`, as text and as JSON.

// Scores against the first reference alone, over the sentences that also have a different one. They
// score the translations, and the first different reference taken as a translation (`humans`).
struct OneReference {
  qkv::app::CorpusScore translations{};
  qkv::app::CorpusScore humans{};
  qkv::app::Signature signature{};
};

// Other translations of the same sentences, their scores, and the probability of a difference by
// chance.
struct Rival {
  std::string file{};
  qkv::app::CorpusScore score{};
  qkv::app::PairedTest p{};
  qkv::app::Resampling resampling{};
};

// All results of one call of `qkv score`.
struct Scores {
  qkv::Index pairs = 0;
  std::optional<qkv::app::TranslationLoss> loss{};  // of a model, on all sentence pairs
  qkv::app::CorpusScore score{};
  qkv::app::Signature signature{};
  std::optional<OneReference> one_reference{};  // empty if no sentence has two different references
  std::optional<Rival> rival{};
};

std::string text_of(const Scores& scores);
nlohmann::ordered_json json_of(const Scores& scores);

#endif  // QKV_COMMANDS_TRAIN_SCORE_REPORT_H_
