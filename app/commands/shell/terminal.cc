// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/terminal.h"

#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

#include "text/numbers.h"

namespace {

// The width of the terminal to which standard output goes; without one, the number in COLUMNS if it
// is 20 or more, else 80.
int terminal_columns() {
  struct winsize size {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* text = std::getenv("COLUMNS");
  constexpr int kFewest = 20;
  const auto columns = qkv::app::parse_number<int>(text == nullptr ? "" : text);
  return columns && *columns >= kFewest ? *columns : 80;
}

// Whether the locale's character set is UTF-8; true if no locale is set.
bool unicode_wanted() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale(value);
    return locale.find("UTF-8") != std::string_view::npos ||
           locale.find("utf8") != std::string_view::npos ||
           locale.find("UTF8") != std::string_view::npos ||
           locale.find("utf-8") != std::string_view::npos;
  }
  return true;
}

}  // namespace

bool on_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

int table_columns() { return on_terminal() ? terminal_columns() : 0; }

qkv::app::TerminalStyle terminal_style(const Common& common) {
  return {.columns = terminal_columns(),
          .colours = terminal_colours(common),
          .unicode = unicode_wanted()};
}
