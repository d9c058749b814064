// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_TEST_PAIRS_H_
#define QKV_COMMANDS_TRAIN_TEST_PAIRS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <qkv/app/translation_model.h>

#include "commands/shell/console.h"
#include "text/sentences.h"

// What `qkv score` reads: pairs, and translations that were made elsewhere.

struct PairColumns {
  qkv::Index source = 0;
  qkv::Index target = 1;
};

// The pairs of a file, in its order.
struct TestPairs {
  std::string name{};  // of the file in messages
  std::vector<qkv::app::TextPair> pairs{};
  std::vector<std::size_t> lengths{};  // what `check` returned for each
  qkv::app::Sentences sentences{};     // of the pairs, grouped by source
};

// Called for each pair with its line; may throw InputError; returns how long it is.
using CheckPair =
    std::function<std::size_t(const qkv::app::TextPair&, const std::string& file, qkv::Index line)>;

// Throws InputError for an empty source. A reference may be empty.
TestPairs read_test_pairs(const std::string& path, const PairColumns& columns,
                          const CheckPair& check, const Common& common);

// The translations in a file, a line each, of the sentences of the pairs: a line for each sentence,
// in the order of their first pairs, or a line for each pair, of which a sentence's first counts.
// Throws InputError for any other number of lines.
std::vector<std::string> read_translations(const std::string& path, const TestPairs& pairs);

#endif  // QKV_COMMANDS_TRAIN_TEST_PAIRS_H_
