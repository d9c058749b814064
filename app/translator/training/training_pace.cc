// SPDX-License-Identifier: Apache-2.0
#include "translator/training/training_pace.h"

#include <algorithm>
#include <cmath>

namespace qkv::app {
namespace {

// The number of multiples of `every` in (from, to].
double multiples(double every, double from, double to) {
  return std::floor(to / every) - std::floor(from / every);
}

// The number of batches done so far, if all epochs had as many batches as the current epoch.
double batches_done(const Position& at) {
  return static_cast<double>(at.spent.epochs) * static_cast<double>(at.batches) +
         static_cast<double>(at.batch);
}

// The number of updates until the first of the budget's limits of updates and epochs is reached;
// empty if the budget has neither.
std::optional<double> updates_left(const Budget& budget, const Position& at) {
  std::optional<double> least;
  const auto take = [&](double updates) { least = std::min(least.value_or(updates), updates); };
  if (budget.updates) take(static_cast<double>(*budget.updates - at.spent.updates));
  if (budget.epochs) {
    take(static_cast<double>(*budget.epochs) * static_cast<double>(at.batches) - batches_done(at));
  }
  if (least) least = std::max(*least, 0.0);
  return least;
}

}  // namespace

double validations_due(const Budget& every, const Position& at, double updates, double seconds) {
  double most = 0;
  if (every.updates) {
    const auto now = static_cast<double>(at.spent.updates);
    most = std::max(most, multiples(static_cast<double>(*every.updates), now, now + updates));
  }
  if (every.epochs) {
    const double now = batches_done(at);
    const double epochs = static_cast<double>(*every.epochs);
    most = std::max(most, multiples(epochs * static_cast<double>(at.batches), now, now + updates));
  }
  if (every.seconds) most = std::max(most, std::floor(seconds / *every.seconds));
  return most;
}

std::optional<double> seconds_left(const Budget& budget, const Budget& validate_every,
                                   const Position& at, const Speed& speed) {
  std::optional<double> least;
  if (const auto updates = updates_left(budget, at)) {
    const double training = *updates * speed.seconds_per_update;
    least = training +
            speed.seconds_per_validation * validations_due(validate_every, at, *updates, training);
  }
  if (budget.seconds) {
    const double seconds = std::max(*budget.seconds - at.spent.seconds, 0.0);
    least = std::min(least.value_or(seconds), seconds);
  }
  return least;
}

void TrainingPace::start(double seconds) {
  seconds_before_ = seconds;
  started_ = Clock::now();
}

double TrainingPace::seconds() const {
  const std::chrono::duration<double> spent = Clock::now() - started_;
  return seconds_before_ + spent.count();
}

void TrainingPace::add_update(Index target_tokens) {
  ++updates_;
  tokens_ += target_tokens;
}

void TrainingPace::add_validation(double seconds) {
  ++validations_;
  validation_seconds_ += seconds;
}

double TrainingPace::tokens_per_second() const {
  return static_cast<double>(tokens_) / training_seconds();
}

Speed TrainingPace::speed() const {
  const auto mean = [](double seconds, Index count) {
    return count > 0 ? seconds / static_cast<double>(count) : 0.0;
  };
  return {mean(training_seconds(), updates_), mean(validation_seconds_, validations_)};
}

}  // namespace qkv::app
