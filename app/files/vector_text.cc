// SPDX-License-Identifier: Apache-2.0
#include "files/vector_text.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

#include "text/numbers.h"

namespace qkv::files {
namespace {

using app::parse_number;
using app::quoted;

constexpr std::string_view kBlanks = " \t";

// Removes and returns the last field of a line, which is empty if there is none.
std::string_view take_last_field(std::string_view& line) {
  const std::size_t end = line.find_last_not_of(kBlanks);
  line = line.substr(0, end + 1);  // npos + 1 is 0
  const std::size_t blank = line.find_last_of(kBlanks);
  const std::string_view field = blank == line.npos ? line : line.substr(blank + 1);
  line.remove_suffix(field.size());
  return field;
}

std::string_view without_end_blanks(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

bool is_number(std::string_view field) { return parse_number<double>(field).has_value(); }

// Whether a field is meant as a number, though perhaps an invalid one: "12x", "1e999", "nan".
bool looks_like_number(std::string_view field) {
  const std::size_t sign = field.find_first_not_of("+-");
  if (sign == field.npos) return false;
  const std::string_view digits = field.substr(sign);
  return (digits[0] >= '0' && digits[0] <= '9') || digits == "nan" || digits == "inf";
}

// Whether a line is two whole numbers of any size and sign: a header rather than a word and its
// only number.
bool is_like_header(std::string_view line) {
  const auto is_whole = [](std::string_view field) {
    if (field.starts_with('-')) field.remove_prefix(1);
    return !field.empty() && field.find_first_not_of("0123456789") == field.npos;
  };
  const std::string_view second = take_last_field(line);
  return is_whole(second) && is_whole(take_last_field(line)) && line.empty();
}

}  // namespace

std::optional<VectorHeader> parse_vector_header(std::string_view line) {
  const std::string_view second = take_last_field(line);
  const std::string_view first = take_last_field(line);
  const auto count = parse_number<Index>(first);
  const auto width = parse_number<Index>(second);
  if (!line.empty() || !count || !width || *count < 0 || *width < 1) return std::nullopt;
  return VectorHeader{*count, *width};
}

std::string_view first_field(std::string_view line) {
  return line.substr(0, line.find_first_of(kBlanks));
}

VectorText::VectorText(InputFile& file, Index width, Index lines_to_confirm, Progress progress)
    : lines_(file, std::move(progress)), width_(width), to_confirm_(lines_to_confirm) {}

bool VectorText::take_header(std::string_view line) {
  header_ = parse_vector_header(line);
  if (!header_ && width_ == 0 && is_like_header(line)) {
    lines_.fail(fmt::format("expected a count and a width, or a word and its numbers, got {}",
                            quoted(line)));
  }
  if (!header_) return false;
  if (width_ == 1 && header_->width != 1) {  // the line is a word, such as "7", and its only number
    header_.reset();
    return false;
  }
  if (width_ != 0 && width_ != header_->width) {
    lines_.fail(fmt::format("expected vectors of width {}, got a header that says {}", width_,
                            header_->width));
  }
  width_ = header_->width;
  return true;
}

// Sets the width to the count of numbers at the end of a line. The fields before the numbers are a
// word that may contain blanks.
void VectorText::take_width_from(std::string_view line) {
  std::string_view rest = without_end_blanks(line);
  std::string_view field = take_last_field(rest);
  while (!rest.empty() && is_number(field)) {
    ++width_;
    field = take_last_field(rest);
  }
  if (!rest.empty() && looks_like_number(field)) {
    lines_.fail(fmt::format("expected a word and its numbers, got {}", quoted(field)));
  }
  if (width_ == 0) {
    lines_.fail(fmt::format("expected a word and its numbers, got {}", quoted(line)));
  }
}

// Throws InputError at the end of the file if it is empty or its header claimed another number of
// words.
void VectorText::expect_all() const {
  if (lines_.number() == 0) {
    throw app::InputError::at_line(lines_.name(), 1,
                                   "expected a word and its numbers, got an empty file");
  }
  if (given_ == 0 && !header_) {
    lines_.fail("expected a word and its numbers, got empty lines");
  }
  if (header_ && header_->count != given_) {
    throw app::InputError::at_line(
        lines_.name(), 1,
        fmt::format("{}expected a word count of {}, got {}",
                    given_ < header_->count ? kTruncated : "", header_->count, given_));
  }
}

bool VectorText::next(std::string_view& line) {
  do {
    if (!lines_.next(line)) {
      expect_all();
      return false;
    }
  } while (line.find_first_not_of(kBlanks) == line.npos ||
           (lines_.number() == 1 && take_header(line)));
  ++given_;
  if (width_ == 0) take_width_from(line);
  if (to_confirm_ > 0) {
    --to_confirm_;
    parse(cut(line), numbers_);
  }
  return true;
}

VectorText::Cut VectorText::cut(std::string_view line) const {
  Cut result{line, {}};
  // The width may be a header's wrong claim; no line has more fields than bytes.
  if (width_ > static_cast<Index>(line.size())) {
    lines_.fail(fmt::format("{}expected a word and a vector of width {}, got a line of {} bytes",
                            lines_.is_open() ? kTruncated : "", width_, line.size()));
  }
  result.numbers.resize(static_cast<std::size_t>(width_));
  for (auto number = result.numbers.rbegin(); number != result.numbers.rend(); ++number) {
    *number = take_last_field(result.word);
    if (result.word.empty()) {
      lines_.fail(fmt::format("{}expected a word and a vector of width {}, got a field count of {}",
                              lines_.is_open() ? kTruncated : "", width_,
                              number - result.numbers.rbegin() + (number->empty() ? 0 : 1)));
    }
  }
  result.word = without_end_blanks(result.word);
  return result;
}

void VectorText::parse(const Cut& line, std::vector<float>& numbers) const {
  numbers.clear();
  for (std::size_t i = 0; i < line.numbers.size(); ++i) {
    const auto value = parse_number<double>(line.numbers[i]);
    if (!value) {
      const bool is_cut = lines_.is_open() && i + 1 == line.numbers.size();
      lines_.fail(fmt::format("{}expected a vector of width {} after {}, got {} as number {}",
                              is_cut ? kTruncated : "", width_, quoted(line.word),
                              quoted(line.numbers[i]), i + 1));
    }
    // The nearest float32, which is 0 for numbers that parse_number<float>() refuses as too small.
    const auto narrow = static_cast<float>(*value);
    if (std::isinf(narrow)) {
      lines_.fail(fmt::format("expected numbers that float32 can hold after {}, got {}",
                              quoted(line.word), quoted(line.numbers[i])));
    }
    numbers.push_back(parse_number<float>(line.numbers[i]).value_or(narrow));
  }
  std::string_view rest = line.word;
  const std::string_view last = take_last_field(rest);
  if (!rest.empty() && last.find('.') != last.npos && is_number(last)) {
    lines_.fail(fmt::format("expected a vector of width {} after {}, got more: {} before it",
                            width_, quoted(first_field(line.word)), quoted(last)));
  }
}

}  // namespace qkv::files
