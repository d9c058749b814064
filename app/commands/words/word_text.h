// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_WORDS_WORD_TEXT_H_
#define QKV_COMMANDS_WORDS_WORD_TEXT_H_

#include <string>
#include <vector>

// The words, at least one, of the arguments joined by spaces, or of standard input if "-" is the
// only argument. Standard input is split as it arrives, and read no further once it is too long.
// Throws UsageError for invalid arguments and InputError for invalid standard input.
std::vector<std::string> read_tokens(const std::vector<std::string>& text);

#endif  // QKV_COMMANDS_WORDS_WORD_TEXT_H_
