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

// Options common to all commands, accepted before or after the command's name.
struct Common {
  std::string program = "qkv";  // argv[0]
  int threads = 0;              // 0: one per processor
  bool quiet = false;
  ProgressMode progress = ProgressMode::kAuto;
  ColourMode colour = ColourMode::kAuto;
};

// The reader of standard output has closed it: the program ends quietly.
struct ClosedPipe {};

// The name of an input: "<stdin>" for "-".
std::string input_name(const std::string& path);
// The name of an input as messages write it: none of its bytes moves a cursor or ends a line.
std::string shown_name(const std::string& path);

// Prints results. Throws ClosedPipe, and OutputError when standard output cannot be written.
void print(std::string_view text);
// One line on standard error: of an error; of a warning, unless quiet.
void complain(std::string_view text);
void warn(const Common& common, std::string_view text);
// The colours to use on standard output. By default only a terminal gets colours, and only if
// NO_COLOR is not set (no-color.org).
qkv::app::TerminalColours terminal_colours(const Common& common);

// Installs handlers: SIGINT and SIGTERM set the flag (a second one ends the program at once), and
// writing to a closed pipe or past a size limit is an ordinary error.
void catch_signals();
// True after such a signal; its number, or 0.
const std::atomic<bool>& stop_flag();
int caught_signal();

#endif  // QKV_COMMANDS_SHELL_CONSOLE_H_
