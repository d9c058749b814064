// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_DEMO_H_
#define QKV_COMMANDS_ABOUT_DEMO_H_

#include <optional>
#include <string>

#include <qkv/view.h>

#include "commands/about/seed_numbers.h"
#include "commands/shell/console.h"
#include "commands/train/translate.h"

// The numbers printed in the four seed documents, recomputed.
SeedReport seed_numbers();

// A sentence translated by the linked model of English and French.
TranslatedLine translated_sentence();
// Where it looked, and a date beside it.
std::string sentence_report(const TranslatedLine& sentence, const Common& common);

struct LongSequence {
  std::string report{};
  std::string custom{};  // what a score of one's own costs
};

// Attention over a long sequence, forward and backward: time, memory, what a query looked at.
// Without `asked`: as many tokens as take about a second forward. Throws Cancelled after Ctrl-C.
LongSequence long_sequence(std::optional<qkv::Index> asked, const Common& common);

#endif  // QKV_COMMANDS_ABOUT_DEMO_H_
