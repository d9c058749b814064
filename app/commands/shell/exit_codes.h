// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_EXIT_CODES_H_
#define QKV_COMMANDS_SHELL_EXIT_CODES_H_

#include <stdexcept>

// The program's exit codes. After a signal the code is kSignalBase + its number (130 for SIGINT,
// 143 for SIGTERM).
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,        // an error while running that no other code describes
  kUsage = 2,         // the command line is wrong
  kInput = 3,         // an input is missing or malformed
  kOutput = 4,        // an output cannot be written
  kDiverged = 5,      // training met NaN or infinity
  kNotAvailable = 7,  // the request needs something that this machine or build lacks
  kSignalBase = 128,
};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#endif  // QKV_COMMANDS_SHELL_EXIT_CODES_H_
