// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_MEMORY_H_
#define QKV_COMMANDS_SHELL_MEMORY_H_

#include <string_view>

// Throws UsageError if `bytes` is more than 90 % of this machine's memory: allocating that much
// could get this program, or another, killed silently. `what` begins the message and `hint` ends
// it.
void check_memory(double bytes, std::string_view what, std::string_view hint);

// Makes the C library keep memory that this program frees, where it can. Otherwise each update of a
// training returns large arrays to the operating system and gets them back cleared. The system time
// of `qkv train` with batches of 65,536 tokens was 15 % of the whole without this function, and is
// 6 %.
void keep_freed_memory();

#endif  // QKV_COMMANDS_SHELL_MEMORY_H_
