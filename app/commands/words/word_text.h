// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_WORDS_WORD_TEXT_H_
#define QKV_COMMANDS_WORDS_WORD_TEXT_H_

#include <string>
#include <vector>

// The words of the arguments, joined by spaces, or of standard input if "-" is the only one.
// Standard input is split as it arrives, and reading stops where it becomes too large. At least
// one word; throws UsageError for the arguments, InputError for standard input.
std::vector<std::string> read_tokens(const std::vector<std::string>& text);

#endif  // QKV_COMMANDS_WORDS_WORD_TEXT_H_
