// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_WORDS_COMMANDS_H_
#define QKV_COMMANDS_WORDS_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Adds the command `words`, which runs after its command line has been parsed. `common` must live
// until the command has finished.
void add_words(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_WORDS_COMMANDS_H_
