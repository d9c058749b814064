// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ATTEND_COMMANDS_H_
#define QKV_COMMANDS_ATTEND_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Adds one command; it runs while the command line is read to its end. `common` must outlive the
// application.
void add_attend(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_ATTEND_COMMANDS_H_
