// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_CONSOLE_H_
#define QKV_COMMANDS_SHELL_CONSOLE_H_

#include <atomic>
#include <string>
#include <string_view>

#include <qkv/app/picture.h>

#include "commands/shell/options.h"

enum class ProgressMode { kAuto, kAlways, kNever };
inline constexpr Choice<ProgressMode> kProgress[] = {{"auto", ProgressMode::kAuto},
                                                     {"always", ProgressMode::kAlways},
                                                     {"never", ProgressMode::kNever}};
enum class ColourMode { kAuto, kAlways, kNever };
inline constexpr Choice<ColourMode> kColour[] = {
    {"auto", ColourMode::kAuto}, {"always", ColourMode::kAlways}, {"never", ColourMode::kNever}};

// The options that all commands have; they may stand before or after the command's name.
struct Common {
  std::string program = "qkv";  // argv[0]
  int threads = 0;              // 0: one per processor
  bool quiet = false;
  ProgressMode progress = ProgressMode::kAuto;
  ColourMode colour = ColourMode::kAuto;
};

// Thrown when the reader of standard output has closed it; the program then ends quietly.
struct ClosedPipe {};

// The name of an input in messages and reports: `path`, or "<stdin>" for "-".
std::string input_name(const std::string& path);
// input_name() with control characters escaped, so that printing it on a terminal neither moves the
// cursor nor ends the line.
std::string shown_name(const std::string& path);
// A word of a command line, written for a shell: quoted if it is empty or has a character other
// than ASCII letters, digits and those of "_./+,:=@%-".
std::string in_shell(std::string_view word);
// A path in a command that the user may type: in_shell(path), or shown_name(path) if that differs
// from `path`.
std::string typed(const std::string& path);

// Prints results on standard output. Throws ClosedPipe, or OutputError if writing fails.
void print(std::string_view text);
// Prints an error as one line on standard error.
void complain(std::string_view text);
// Prints a warning in the form of complain(), unless --quiet was given.
void warn(const Common& common, std::string_view text);
// The colours to use on standard output. By default there are colours only if standard output is a
// terminal that shows 256 colours or more, and NO_COLOR is not set (no-color.org).
qkv::app::TerminalColours terminal_colours(const Common& common);

// Installs signal handlers. SIGINT and SIGTERM set stop_flag(), and the same signal again ends the
// program at once. SIGPIPE and SIGXFSZ are ignored, so that a write to a closed pipe, or beyond the
// limit of a file's size, fails with an ordinary error.
void catch_signals();
// Whether SIGINT or SIGTERM has arrived.
const std::atomic<bool>& stop_flag();
// The number of the signal that arrived, or 0.
int caught_signal();

#endif  // QKV_COMMANDS_SHELL_CONSOLE_H_
