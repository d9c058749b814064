// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_DEMO_H_
#define QKV_COMMANDS_ABOUT_DEMO_H_

#include <optional>
#include <string>

#include <qkv/view.h>

#include "commands/about/seed_numbers.h"
#include "commands/shell/console.h"
#include "commands/train/translate.h"

// Recomputes the numbers that the four introductory documents (docs/seeds.md) print, and compares
// them with the printed ones.
SeedReport seed_numbers();

// An English sentence translated to French by a model that is linked into the program.
TranslatedLine translated_sentence();
// The report's part on the sentence, with its attention map and a date that another model
// translates.
std::string sentence_report(const TranslatedLine& sentence, const Common& common);

// Parts of the report, as text.
struct LongSequence {
  std::string report{};  // time, memory and the keys with the largest weights
  std::string custom{};  // the cost of a user-defined score
};

// Computes attention over a sequence of `asked` tokens, forward and backward, and reports on it. If
// `asked` is empty, there are 16,384 tokens, or fewer where the path or the build is slow.
// Throws Cancelled after Ctrl-C.
LongSequence long_sequence(std::optional<qkv::Index> asked, const Common& common);

#endif  // QKV_COMMANDS_ABOUT_DEMO_H_
