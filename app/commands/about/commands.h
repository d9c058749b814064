// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_COMMANDS_H_
#define QKV_COMMANDS_ABOUT_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Each function adds one command to the program. The command runs after its command line has been
// parsed; `common` must live until it has finished.
void add_info(const Command& program, const Common& common);
void add_bench(const Command& program, const Common& common);
void add_demo(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_ABOUT_COMMANDS_H_
