// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_WORDS_COMMANDS_H_
#define QKV_COMMANDS_WORDS_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Adds one command, which runs from the parser's callback. `common` must outlive the application.
void add_words(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_WORDS_COMMANDS_H_
