// SPDX-License-Identifier: Apache-2.0
#include "commands/shell/progress.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "text/text.h"

namespace {

using namespace std::chrono_literals;

bool is_enabled(const Common& common) {
  if (common.progress == ProgressMode::kAuto) return !common.quiet;
  return common.progress == ProgressMode::kAlways;
}

// The width of the terminal to which standard error goes; 80 if it is unknown.
int columns() {
  struct winsize size {};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(const Common& common, std::string task)
    : task_(std::move(task)),
      enabled_(is_enabled(common)),
      terminal_(::isatty(STDERR_FILENO) == 1),
      pause_(terminal_ ? 100ms : 1s),
      next_(Clock::now() + (common.progress == ProgressMode::kAlways ? 0s : 1s)) {}

Progress::~Progress() {
  if (drawn_ && terminal_) std::fputs("\r\x1b[K", stderr);
  if (drawn_ && !terminal_ && !state_.empty()) show(state_);
}

void Progress::bytes(qkv::Index done, qkv::Index total) {
  if (!enabled_) return;
  const auto read = static_cast<double>(done);
  const auto whole = static_cast<double>(total);
  at(total > 0 ? fmt::format("{:.0f} % of {:.1f} MB", 100 * read / whole, whole * 1e-6)
               : fmt::format("{:.1f} MB", read * 1e-6));
}

void Progress::at(const std::string& state) {
  if (!enabled_) return;
  state_ = state;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + pause_;
  show(std::exchange(state_, ""));
}

void Progress::now(const std::string& state) {
  next_ = std::min(next_, Clock::now());
  at(state);
}

void Progress::keep(const std::string& text) {
  if (!enabled_) return;
  const char* erase = drawn_ && terminal_ ? "\r\x1b[K" : "";
  std::string lines = erase;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    lines += fmt::format("qkv: {}: {}\n", task_, text.substr(start, end - start));
    start = end + 1;
  }
  std::fputs(lines.c_str(), stderr);
}

void Progress::show(const std::string& state) {
  drawn_ = true;
  std::string line = fmt::format("qkv: {}: {}", task_, state);
  if (terminal_) line = qkv::app::shortened(line, columns() - 1);  // a wrapped line is not erased
  std::fputs((terminal_ ? "\r" + line + "\x1b[K" : line + "\n").c_str(), stderr);
}
