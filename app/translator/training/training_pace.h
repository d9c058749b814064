// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_TRAINING_TRAINING_PACE_H_
#define QKV_TRANSLATOR_TRAINING_TRAINING_PACE_H_

#include <chrono>
#include <optional>

#include "translator/training/budget.h"

namespace qkv::app {

// Where training is: in the epoch that has begun, so many of its batches are done.
struct Position {
  Spent spent{};
  Index batch = 0;
  Index batches = 0;
};

// How many validations become due in so many more updates, which take so many seconds. By time it
// may err by one: when the last one was does not matter.
double validations_due(const Budget& every, const Position& at, double updates, double seconds);

struct Speed {
  double seconds_per_update = 0;
  double seconds_per_validation = 0;
};

// Until a budget is used up, of those that are given the one that ends first: for one in updates or
// epochs the updates that are left, and the validations that become due until then; none without a
// budget. `validate_every` is empty if there are no validations.
std::optional<double> seconds_left(const Budget& after, const Budget& validate_every,
                                   const Position& at, const Speed& speed);

// The clock of one run in a folder: the time of all runs, and the speed of this one.
class TrainingPace {
 public:
  // `seconds` were spent by earlier runs in the folder.
  void start(double seconds);
  double seconds() const;  // of all runs

  void add_update(Index target_tokens);
  // Which took so long.
  void add_validation(double seconds);

  // Of training: the time of validations is not in it.
  double tokens_per_second() const;
  Speed speed() const;  // on average, in this run

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
