// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_MEMORY_H_
#define QKV_COMMANDS_SHELL_MEMORY_H_

#include <string_view>

// Throws UsageError if `bytes` is more than 90 % of this machine's memory: allocating that much
// could get this program, or another, killed silently. `what` begins the message and `hint` ends
// it.
void check_memory(double bytes, std::string_view what, std::string_view hint);

#endif  // QKV_COMMANDS_SHELL_MEMORY_H_
