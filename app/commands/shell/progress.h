// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_PROGRESS_H_
#define QKV_COMMANDS_SHELL_PROGRESS_H_

#include <chrono>
#include <string>

#include <qkv/view.h>

#include "commands/shell/console.h"

// Shows the progress of a long task on standard error: on a terminal as one line that is updated
// (at most ten times a second) and erased at the end, elsewhere as a line a second and one at the
// end. With --progress auto nothing is shown in the first second; with `always` the first state is
// shown at once.
class Progress {
 public:
  Progress(const Common& common, std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows how many bytes of `total` are done; a total of -1 is unknown.
  void bytes(qkv::Index done, qkv::Index total);
  // Shows `state`, a short text that says how far the task is.
  void at(const std::string& state);
  // Shows `state` at once, even in the first second: for a step that is long and reports nothing.
  void now(const std::string& state);
  // Prints lines that stay, above the line that is updated.
  void keep(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void show(const std::string& state);

  std::string task_;
  std::string state_;  // the text last passed to at(), if it has not been shown yet
  bool enabled_;
  bool terminal_;
  bool drawn_ = false;      // whether a state has been shown
  Clock::duration pause_;   // the least time between two states that are shown
  Clock::time_point next_;  // the earliest time at which the next state may be shown
};

#endif  // QKV_COMMANDS_SHELL_PROGRESS_H_
