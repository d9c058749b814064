// SPDX-License-Identifier: Apache-2.0
#include "translator/training/budget.h"

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "text/numbers.h"

namespace qkv::app {
namespace {

[[noreturn]] void refuse(std::string_view part, const std::string& rule) {
  throw Error("parse_budget", "budget",
              fmt::format("must be like 10e,5000u,30m: {}, got {}", rule, app::quoted(part)));
}

// A million years in seconds, so that seconds and updates stay far from the limits of their types.
constexpr double kMost = 3.2e13;

template <class T>
void set_limit(std::optional<T>& limit, std::string_view part, T factor, const char* kind) {
  const auto number = parse_number<T>(part.substr(0, part.size() - 1));
  if (!number || !(*number > 0)) {
    refuse(part, std::is_integral_v<T> ? "a positive whole number before the unit"
                                       : "a positive number before the unit");
  }
  if (limit) refuse(part, fmt::format("{} may be given only once", kind));
  if (static_cast<double>(*number) * static_cast<double>(factor) > kMost) {
    refuse(part, fmt::format("the number before the unit may be at most {:.2g}",
                             kMost / static_cast<double>(factor)));
  }
  limit = *number * factor;
}

void add_part(std::string_view part, Budget& budget) {
  switch (part.empty() ? '\0' : part.back()) {
    case 'e':
      return set_limit<Index>(budget.epochs, part, 1, "epochs");
    case 'u':
      return set_limit<Index>(budget.updates, part, 1, "updates");
    case 's':
      return set_limit<double>(budget.seconds, part, 1, "a time");
    case 'm':
      return set_limit<double>(budget.seconds, part, 60, "a time");
    case 'h':
      return set_limit<double>(budget.seconds, part, 3600, "a time");
    default:
      refuse(part, "units are e (epochs), u (updates), s, m, h");
  }
}

}  // namespace

Budget parse_budget(std::string_view text) {
  Budget budget;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    add_part(text.substr(start, end - start), budget);
    start = end + 1;
  }
  return budget;
}

std::string to_string(const Budget& budget) {
  std::string text;
  const auto add = [&](const auto& value, char unit) {
    if (value) text += fmt::format("{}{}{}", text.empty() ? "" : ",", *value, unit);
  };
  add(budget.epochs, 'e');
  add(budget.updates, 'u');
  add(budget.seconds, 's');
  return text;
}

bool is_spent(const Budget& budget, const Spent& spent) {
  return (budget.epochs && spent.epochs >= *budget.epochs) ||
         (budget.updates && spent.updates >= *budget.updates) ||
         (budget.seconds && spent.seconds >= *budget.seconds);
}

}  // namespace qkv::app
