// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_COMMANDS_H_
#define QKV_COMMANDS_VIEW_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Each function adds one command to the program; the command runs when the command line has been
// parsed. `common` must outlive the parsing.
void add_view(const Command& program, const Common& common);
void add_stats(const Command& program, const Common& common);
void add_inspect(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_VIEW_COMMANDS_H_
