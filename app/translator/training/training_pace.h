// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_PACE_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_PACE_H_

#include <chrono>
#include <optional>

#include "translator/training/budget.h"

namespace qkv::app {

// The position of training.
struct Position {
  Spent spent{};
  Index batch = 0;    // the number of batches done in the current epoch
  Index batches = 0;  // the number of all batches of the current epoch
};

// An estimate of the number of validations due in the next `updates` updates, which take `seconds`
// seconds. If `every` has several intervals, only the one with the most validations counts. An
// interval of time is counted from `at` on, not from the last validation.
double validations_due(const Budget& every, const Position& at, double updates, double seconds);

struct Speed {
  double seconds_per_update = 0;
  double seconds_per_validation = 0;
};

// An estimate of the seconds until the first limit of `budget` is reached. For a limit of updates
// or epochs, it is the time of the remaining updates and of the validations that become due until
// then. Empty without limits. `validate_every` is empty if there are no validations.
std::optional<double> seconds_left(const Budget& budget, const Budget& validate_every,
                                   const Position& at, const Speed& speed);

// The clock of one run in a folder: the time of all runs so far, and the speed of this one.
class TrainingPace {
 public:
  // Starts the clock. `seconds` were spent by earlier runs in the folder.
  void start(double seconds);
  double seconds() const;  // of all runs in the folder

  void add_update(Index target_tokens);
  // Counts a validation that took that many seconds.
  void add_validation(double seconds);

  // Target tokens per second of training, without the time of validations.
  double tokens_per_second() const;
  Speed speed() const;  // means of this run

 private:
  using Clock = std::chrono::steady_clock;

  double training_seconds() const { return seconds() - seconds_before_ - validation_seconds_; }

  Clock::time_point started_ = Clock::now();
  double seconds_before_ = 0;
  Index updates_ = 0;
  Index tokens_ = 0;
  Index validations_ = 0;
  double validation_seconds_ = 0;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_TRAINING_TRAINING_PACE_H_
