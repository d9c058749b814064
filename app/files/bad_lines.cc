// SPDX-License-Identifier: Apache-2.0
#include "files/bad_lines.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/utf8.h>

namespace qkv::app {
namespace {

// The part of an error's text after the file and the line.
std::string detail_of(const InputError& error) {
  std::string text = error.what();
  const std::string place = fmt::format("{}:{}: ", on_one_line(error.file()), error.line());
  if (text.starts_with(place)) text.erase(0, place.size());
  return text;
}

}  // namespace

InputError with_skip_bad(const InputError& error) {
  return InputError::at_line(error.file(), error.line(),
                             detail_of(error) + "; --skip-bad skips such lines");
}

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
  reason_ = detail_of(error);
}

std::string BadLines::summary(Index lines, std::string_view fate) const {
  return fmt::format("{} of {} lines {}: {}; the first: {}", count(), lines, fate, numbers_.text(),
                     reason_);
}

}  // namespace qkv::app
