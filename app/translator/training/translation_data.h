// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRANSLATION_DATA_H_
#define QKV_TRANSLATOR_TRAINING_TRANSLATION_DATA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <qkv/app/subwords.h>
#include <qkv/app/text_style.h>
#include <qkv/app/tokenizer.h>
#include <qkv/app/translation_model.h>
#include <qkv/app/vocabulary.h>

#include "text/sentences.h"
#include "translator/data/batches.h"
#include "translator/training/training_settings.h"
#include "translator/training/translation_run.h"

// The data of a run as token ids.
namespace qkv::app {

// A validation sentence to translate, and the index of the first sentence pair whose source it is.
struct TranslatedSentence {
  Sentence text{};
  Index pair = 0;
};

// The sentence pairs of one file as ids; each text ends in the end token.
struct EncodedPairs {
  std::vector<std::vector<std::int32_t>> source{};
  std::vector<std::vector<std::int32_t>> target{};
  // The first `valid_translate` different sentences of the validation data, in the order of the
  // file; empty for training data.
  std::vector<TranslatedSentence> sentences{};
  DataFacts facts{};

  TokenPair pair(Index n) const {
    return {source[static_cast<std::size_t>(n)], target[static_cast<std::size_t>(n)]};
  }
  std::vector<PairLength> lengths() const;
};

struct TranslationData {
  EncodedPairs train{};
  EncodedPairs valid{};
  Tokenizer tokenizer{};
  std::string subword_hash{};  // hash of the subword model; empty for other tokens
  // The vocabularies of the training data; with subwords, each is the vocabulary of all pieces.
  Vocabulary source{};
  Vocabulary target{};
  TextStyle style{};         // of the target texts
  Index longest_source = 0;  // the most source tokens of a training pair, without the end token
};

// Reads the training and validation data. Subwords are learned from both texts of all training
// sentence pairs unless they are given. Throws InputError for files without a usable sentence pair
// and, unless bad lines are skipped, for a line that is not a pair; Error if too many or too few
// subwords are requested; Cancelled if the flag of `hooks` becomes true. Calls hooks.warning and
// hooks.learning.
TranslationData read_translation_data(const TrainingOptions& options,
                                      const std::optional<Subwords>& subwords,
                                      const TrainingHooks& hooks);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRANSLATION_DATA_H_
