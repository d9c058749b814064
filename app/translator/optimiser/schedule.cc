// SPDX-License-Identifier: Apache-2.0
#include "translator/optimiser/schedule.h"

#include <cmath>

#include <fmt/format.h>

#include <qkv/error.h>

namespace qkv::app {

double learning_rate(const Schedule& schedule, Index update) {
  const auto check = [](bool good, const char* name, const char* rule, double got) {
    if (!good) throw Error("learning_rate", name, fmt::format("must be {}, got {}", rule, got));
  };
  check(schedule.rate > 0 && std::isfinite(schedule.rate), "rate", "finite and above 0",
        schedule.rate);
  check(schedule.warmup >= 0, "warmup", "at least 0", static_cast<double>(schedule.warmup));
  check(schedule.decay >= 0 && std::isfinite(schedule.decay), "decay", "finite and not negative",
        schedule.decay);
  check(update >= 1, "update", "at least 1", static_cast<double>(update));
  const auto u = static_cast<double>(update);
  const auto W = static_cast<double>(schedule.warmup);
  if (u < W) return schedule.rate * (u / W);
  if (schedule.decay == 0) return schedule.rate;
  return schedule.rate / std::sqrt(1 + (u - W) / schedule.decay);
}

}  // namespace qkv::app
