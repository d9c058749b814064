// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_TERMINAL_H_
#define QKV_COMMANDS_SHELL_TERMINAL_H_

#include <qkv/app/picture.h>

#include "commands/shell/console.h"

// The width, colours and characters with which maps are drawn on standard output.
qkv::app::TerminalStyle terminal_style(const Common& common);

// Whether standard output is a terminal, where a person reads it.
bool on_terminal();
// The width that tables on standard output must fit: the terminal's. For a pipe or a file this is
// 0, which stands for any width, since programs read whole lines.
int table_columns();

#endif  // QKV_COMMANDS_SHELL_TERMINAL_H_
