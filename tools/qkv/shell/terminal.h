// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_TERMINAL_H_
#define QKV_TOOLS_SHELL_TERMINAL_H_

#include <qkv/app/picture.h>

#include "shell/console.h"

// How maps are drawn on standard output.
qkv::app::TerminalStyle terminal_style(const Common& common);

#endif  // QKV_TOOLS_SHELL_TERMINAL_H_
