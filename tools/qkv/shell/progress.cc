// SPDX-License-Identifier: Apache-2.0
#include "shell/progress.h"

#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;

bool is_enabled(const Common& common) {
  if (common.progress == ProgressMode::kAuto) return !common.quiet;
  return common.progress == ProgressMode::kAlways;
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

void Progress::show(const std::string& state) {
  drawn_ = true;
  const std::string line = fmt::format("qkv: {}: {}", task_, state);
  std::fputs((terminal_ ? "\r" + line + "\x1b[K" : line + "\n").c_str(), stderr);
}
