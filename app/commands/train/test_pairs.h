// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TEST_PAIRS_H_
#define QKV_COMMANDS_TRAIN_TEST_PAIRS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <qkv/app/translation_model.h>

#include "commands/shell/console.h"
#include "commands/train/translation.h"
#include "text/sentences.h"

// The input of `qkv score`: sentence pairs, and translations that were made elsewhere.

// The sentence pairs of a file, in its order.
struct TestPairs {
  std::string name{};  // the file's name in messages
  std::vector<qkv::app::TextPair> pairs{};
  std::vector<std::size_t> lengths{};  // the result of `check` for each sentence pair
  qkv::app::Sentences sentences{};     // the sentence pairs, grouped by source
};

// A check of a sentence pair at `line` of `file`. It returns the number of tokens, or 0 if they are
// not needed, and may throw InputError.
using CheckPair =
    std::function<std::size_t(const qkv::app::TextPair&, const std::string& file, qkv::Index line)>;

// The action at a line that is no sentence pair. kRefused throws an InputError; kSkippable throws
// one that suggests --skip-bad; kSkipped leaves the line out, and one warning counts such lines.
enum class BadPairs { kRefused, kSkippable, kSkipped };

// Reads and checks sentence pairs. A line with an empty source is bad; a reference may be empty.
TestPairs read_test_pairs(const std::string& path, const PairColumns& columns, BadPairs bad_pairs,
                          const CheckPair& check, const Common& common);

// Reads translations of the sentences, one per line. A file has either a line for each sentence, in
// the order of their first sentence pairs, or a line for each sentence pair, where the line of a
// sentence's first pair is used. Throws InputError for any other number of lines, after blank
// lines have been dropped from the end until the number fits.
std::vector<std::string> read_translations(const std::string& path, const TestPairs& pairs);

#endif  // QKV_COMMANDS_TRAIN_TEST_PAIRS_H_
