// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include <fmt/format.h>

#include <qkv/error.h>

#include "core/draws.h"
#include "translator/data/date_spelling.h"
#include "translator/data/tasks.h"

namespace qkv::app {
namespace {

using core::Draws;
using core::DrawStream;
using std::chrono::sys_days;
using std::chrono::year_month_day;

constexpr sys_days kFirst = std::chrono::year(1900) / 1 / 1;
constexpr sys_days kEnd = std::chrono::year(2100) / 1 / 1;
constexpr auto kDays = static_cast<std::uint32_t>((kEnd - kFirst).count());

bool is_in(DaySplit split, sys_days day) {
  return split == DaySplit::kAll || is_test_day(day) == (split == DaySplit::kTest);
}

std::string iso8601(sys_days day) {
  const year_month_day date(day);
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

}  // namespace

bool is_test_day(sys_days day) {
  return Draws(0, DrawStream::kTestDays, day.time_since_epoch().count()).once_in(10);
}

Example date_example(std::uint64_t seed, Index n, DaySplit split) {
  if (n < 0) throw Error("date_example", "n", fmt::format("must not be negative, got {}", n));
  Draws draws(seed, DrawStream::kDates, n);
  sys_days day;
  do {
    day = kFirst + std::chrono::days(draws.below(kDays));
  } while (!is_in(split, day));
  return {spelled(day, draws), iso8601(day)};
}

}  // namespace qkv::app
