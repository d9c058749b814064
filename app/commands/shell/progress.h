// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_PROGRESS_H_
#define QKV_COMMANDS_SHELL_PROGRESS_H_

#include <chrono>
#include <string>

#include <qkv/view.h>

#include "commands/shell/console.h"

// Progress of a long task on standard error: on a terminal one line that is updated (at most
// ten times a second) and erased at the end, elsewhere a line a second. With `auto` nothing is
// shown in the first second, with `always` at least the start and the end are.
class Progress {
 public:
  Progress(const Common& common, std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `total` in bytes; -1: unknown.
  void bytes(qkv::Index done, qkv::Index total);
  // What is being done.
  void at(const std::string& state);
  // Lines that stay, above the one that is updated.
  void keep(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void show(const std::string& state);

  std::string task_;
  std::string state_;  // last passed to at() and not shown yet
  bool enabled_;
  bool terminal_;
  bool drawn_ = false;
  Clock::duration pause_;
  Clock::time_point next_;
};

#endif  // QKV_COMMANDS_SHELL_PROGRESS_H_
