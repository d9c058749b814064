// SPDX-License-Identifier: Apache-2.0
#include "files/bad_lines.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace qkv::app {

void LineNumbers::add(Index line) {
  ++count_;
  first_.insert(std::ranges::upper_bound(first_, line), line);
  if (first_.size() > kMost) first_.pop_back();
}

std::string LineNumbers::text() const {
  const Index more = count_ - static_cast<Index>(first_.size());
  return fmt::format("{}{}", fmt::join(first_, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

void BadLines::add(const InputError& error) {
  numbers_.add(error.line());
  if (numbers_.lowest() != error.line()) return;
  // The detail stands behind the file and the line.
  reason_ = error.what();
  const std::string place = fmt::format(":{}: ", error.line());
  const std::size_t at = reason_.find(place);
  if (at != reason_.npos) reason_.erase(0, at + place.size());
}

std::string BadLines::summary(Index lines, std::string_view fate) const {
  return fmt::format("{} of {} lines {}: {}; the first: {}", count(), lines, fate, numbers_.text(),
                     reason_);
}

}  // namespace qkv::app
