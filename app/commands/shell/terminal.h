// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_TERMINAL_H_
#define QKV_COMMANDS_SHELL_TERMINAL_H_

#include <qkv/app/picture.h>

#include "commands/shell/console.h"

// How maps are drawn on standard output.
qkv::app::TerminalStyle terminal_style(const Common& common);

// Whether a person reads standard output as it is: it is a terminal.
bool on_terminal();
// The width that tables on standard output must fit: a terminal's. 0, any width, for a pipe or a
// file: programs read whole lines.
int table_columns();

#endif  // QKV_COMMANDS_SHELL_TERMINAL_H_
