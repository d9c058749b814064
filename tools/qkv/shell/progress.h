// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SHELL_PROGRESS_H_
#define QKV_TOOLS_SHELL_PROGRESS_H_

#include <chrono>
#include <string>

#include <qkv/view.h>

#include "shell/console.h"

// How far a long task is, on standard error: on a terminal one line that is drawn again (at most
// ten times a second) and goes away at the end, elsewhere a line a second. With `auto` nothing is
// said in the first second, with `always` at least the beginning and the end are.
class Progress {
 public:
  Progress(const Common& common, std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `total` bytes or -1: nobody knows.
  void bytes(qkv::Index done, qkv::Index total);
  // What is being done.
  void at(const std::string& state);

 private:
  using Clock = std::chrono::steady_clock;

  void show(const std::string& state);

  std::string task_;
  std::string state_;  // what was said last to at, and not yet shown
  bool enabled_;
  bool terminal_;
  bool drawn_ = false;
  Clock::duration pause_;
  Clock::time_point next_;
};

#endif  // QKV_TOOLS_SHELL_PROGRESS_H_
