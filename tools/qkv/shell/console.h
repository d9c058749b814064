// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_CONSOLE_H_
#define QKV_TOOLS_SHELL_CONSOLE_H_

#include <atomic>
#include <string>
#include <string_view>

#include <qkv/app/picture.h>

#include "shell/options.h"

enum class ProgressMode { kAuto, kAlways, kNever };
inline constexpr Choice<ProgressMode> kProgress[] = {{"auto", ProgressMode::kAuto},
                                                     {"always", ProgressMode::kAlways},
                                                     {"never", ProgressMode::kNever}};
enum class ColourMode { kAuto, kAlways, kNever };
inline constexpr Choice<ColourMode> kColour[] = {
    {"auto", ColourMode::kAuto}, {"always", ColourMode::kAlways}, {"never", ColourMode::kNever}};

// What every command shares: options that may stand before or after its name.
struct Common {
  std::string program = "qkv";  // as it was called
  int threads = 0;              // 0: one per processor
  bool quiet = false;
  ProgressMode progress = ProgressMode::kAuto;
  ColourMode colour = ColourMode::kAuto;
};

// Nobody reads standard output any more: the program ends quietly.
struct ClosedPipe {};

// Results. Throws ClosedPipe, and OutputError when standard output cannot be written.
void print(std::string_view text);
// What the reader should know, one line on standard error, unless quiet.
void warn(const Common& common, std::string_view text);
// What standard output is told. Unless the user says otherwise colours are for terminals, and for
// those who did not set NO_COLOR (no-color.org).
qkv::app::TerminalColours terminal_colours(const Common& common);

// From here on SIGINT and SIGTERM set the flag (a second one ends the program at once), and
// writing to a closed pipe or past a size limit is an error like any other.
void catch_signals();
// True after such a signal; its number, or 0.
const std::atomic<bool>& stop_flag();
int caught_signal();

#endif  // QKV_TOOLS_SHELL_CONSOLE_H_
