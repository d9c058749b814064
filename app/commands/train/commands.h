// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_TRAIN_COMMANDS_H_
#define QKV_COMMANDS_TRAIN_COMMANDS_H_

#include "commands/shell/command.h"
#include "commands/shell/console.h"

// Each function adds one command to the program. The command runs after its command line has been
// parsed; `common` must live until it has finished.
void add_gen(const Command& program, const Common& common);
void add_split(const Command& program, const Common& common);
void add_train(const Command& program, const Common& common);
void add_curve(const Command& program, const Common& common);
void add_average(const Command& program, const Common& common);
void add_translate(const Command& program, const Common& common);
void add_score(const Command& program, const Common& common);

#endif  // QKV_COMMANDS_TRAIN_COMMANDS_H_
