// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/console.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, for sigaction
#include <unistd.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

namespace {

using qkv::app::TerminalColours;

std::atomic<bool> stop{false};
std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may only use lock-free atomics");

extern "C" void on_signal(int number) {
  signal_number.store(number);
  stop.store(true);
}

// The value of an environment variable, "" if it is unset. For the variables that are read here,
// unset and empty mean the same.
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether a terminal belongs to a family. terminfo names a terminal by its family and suffixes,
// such as "screen.xterm-256color".
bool is_of_family(std::string_view terminal, std::string_view family) {
  if (!terminal.starts_with(family)) return false;
  const std::string_view rest = terminal.substr(family.size());
  return rest.empty() || rest.front() == '-' || rest.front() == '.';
}

// Whether the terminal's name promises fewer colours than 256, or none: "dumb", "unknown", DEC's
// terminals ("vt100"), and the suffixes of limited variants of the families in shows_256_colours().
bool shows_few_colours(std::string_view terminal) {
  constexpr std::string_view kWords[] = {"dumb", "unknown"};
  if (std::ranges::find(kWords, terminal) != std::end(kWords)) return true;
  if (terminal.starts_with("vt") && terminal.size() > 2 && terminal[2] >= '0' &&
      terminal[2] <= '9') {
    return true;
  }
  constexpr std::string_view kEnds[] = {"-m",      "-mono",    "-old",     "-color",
                                        "-8color", "-16color", "-88color", ".linux"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return terminal.ends_with(end); });
}

bool shows_256_colours(std::string_view terminal) {
  if (terminal.find("-256color") != std::string_view::npos) return true;
  constexpr std::string_view kFamilies[] = {"xterm", "screen", "tmux",   "konsole", "gnome",
                                            "vte",   "putty",  "iterm2", "mintty",  "st"};
  return std::ranges::any_of(
      kFamilies, [&](std::string_view family) { return is_of_family(terminal, family); });
}

// Whether the terminal shows 24-bit colours, by COLORTERM or its name: asking the terminal itself
// would mean waiting for an answer.
bool shows_all_colours(std::string_view terminal) {
  const std::string_view color_term = variable("COLORTERM");
  if (color_term == "truecolor" || color_term == "24bit" || terminal.ends_with("-direct"))
    return true;
  constexpr std::string_view kNames[] = {"kitty", "alacritty", "foot", "wezterm", "ghostty"};
  return std::ranges::any_of(
      kNames, [&](std::string_view name) { return terminal.find(name) != std::string_view::npos; });
}

}  // namespace

std::string input_name(const std::string& path) { return path == "-" ? "<stdin>" : path; }

std::string shown_name(const std::string& path) { return qkv::app::on_one_line(input_name(path)); }

std::string in_shell(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+,:=@%-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  std::string quoted = "'";
  for (const char letter : word) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + '\'';
}

std::string typed(const std::string& path) {
  const std::string shown = shown_name(path);
  return shown == path ? in_shell(path) : shown;
}

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data(), text.size());
    if (put >= 0) {
      text.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {  // the reader is slow
      struct pollfd out {
        STDOUT_FILENO, POLLOUT, 0
      };
      ::poll(&out, 1, -1);
    } else if (errno == EPIPE) {
      throw ClosedPipe{};
    } else if (errno != EINTR) {
      throw qkv::app::OutputError("<stdout>", std::generic_category().message(errno));
    }
  }
}

void complain(std::string_view text) {
  std::fputs(fmt::format("qkv: {}\n", qkv::app::on_one_line(text)).c_str(), stderr);
}

void warn(const Common& common, std::string_view text) {
  if (!common.quiet) complain(text);
}

qkv::app::TerminalColours terminal_colours(const Common& common) {
  if (common.colour == ColourMode::kNever) return TerminalColours::kNone;
  if (common.colour == ColourMode::kAlways) return TerminalColours::k24Bit;
  const std::string_view terminal = variable("TERM");
  if (::isatty(STDOUT_FILENO) != 1 || !variable("NO_COLOR").empty() || terminal.empty() ||
      shows_few_colours(terminal)) {
    return TerminalColours::kNone;
  }
  if (shows_all_colours(terminal)) return TerminalColours::k24Bit;
  // An attention map in 8 colours would show less than plain characters do.
  return shows_256_colours(terminal) ? TerminalColours::k256 : TerminalColours::kNone;
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;  // no SA_RESTART: a blocked read must return
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

const std::atomic<bool>& stop_flag() { return stop; }
int caught_signal() { return signal_number.load(); }
