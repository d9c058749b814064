// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_COMMANDS_H_
#define QKV_COMMANDS_VIEW_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Each adds one command, which runs from the parser's callback. `common` must outlive the
// application.
void add_view(const Command& program, const Common& common);
void add_stats(const Command& program, const Common& common);
void add_inspect(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_VIEW_COMMANDS_H_
