// SPDX-License-Identifier: Apache-2.0
#include "translator/data/date_words.h"

#include <cstddef>

#include <fmt/format.h>

namespace qkv::app {
namespace {

constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};
constexpr std::string_view kRoman[] = {"I",   "II",   "III", "IV", "V",  "VI",
                                       "VII", "VIII", "IX",  "X",  "XI", "XII"};
constexpr std::string_view kWeekdays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                          "Thursday", "Friday", "Saturday"};
constexpr std::string_view kCardinals[] = {
    "",         "one",     "two",     "three",     "four",     "five",    "six",
    "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::string_view kOrdinals[] = {
    "",           "first",     "second",    "third",       "fourth",     "fifth",     "sixth",
    "seventh",    "eighth",    "ninth",     "tenth",       "eleventh",   "twelfth",   "thirteenth",
    "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth"};
constexpr std::string_view kTens[] = {"",      "",      "twenty",  "thirty", "forty",
                                      "fifty", "sixty", "seventy", "eighty", "ninety"};
constexpr std::size_t kShort = 3;  // letters of an abbreviation

// A number in words, "eighty-seven" or sometimes "eighty seven".
std::string joined(std::string_view tens, std::string_view ones, core::Draws& draws) {
  return fmt::format("{}{}{}", tens, draws.once_in(3) ? ' ' : '-', ones);
}

// The cardinal number 1..99 in words.
std::string cardinal(unsigned number, core::Draws& draws) {
  if (number < 20) return std::string(kCardinals[number]);
  const std::string_view tens = kTens[number / 10];
  return number % 10 == 0 ? std::string(tens) : joined(tens, kCardinals[number % 10], draws);
}

// An abbreviation of the name: one time in four the `longer` one, if there is one, else the first
// three letters. One time in four, a full stop follows, unless the whole name is the abbreviation.
std::string abbreviated(std::string_view name, std::string_view longer, core::Draws& draws) {
  std::string text(!longer.empty() && draws.once_in(4) ? longer : name.substr(0, kShort));
  if (text.size() < name.size() && draws.once_in(4)) text += '.';
  return text;
}

}  // namespace

std::string_view month_name(unsigned month) { return kMonths[month - 1]; }
std::string_view short_month(unsigned month) { return month_name(month).substr(0, kShort); }
std::string_view roman_month(unsigned month) { return kRoman[month - 1]; }
std::string_view weekday_name(unsigned weekday) { return kWeekdays[weekday]; }

std::string abbreviated_month(unsigned month, core::Draws& draws) {
  constexpr unsigned kSeptember = 9;
  return abbreviated(month_name(month), month == kSeptember ? "Sept" : "", draws);
}

std::string abbreviated_weekday(unsigned weekday, core::Draws& draws) {
  constexpr unsigned kTuesday = 2;
  constexpr unsigned kThursday = 4;
  const std::string_view longer = weekday == kTuesday    ? "Tues"
                                  : weekday == kThursday ? "Thurs"
                                                         : "";
  return abbreviated(weekday_name(weekday), longer, draws);
}

std::string ordinal_number(unsigned day) {
  constexpr std::string_view kEndings[] = {"th", "st", "nd", "rd"};
  const bool is_teen = day / 10 == 1;
  const unsigned last = day % 10;
  return fmt::format("{}{}", day, kEndings[is_teen || last > 3 ? 0 : last]);
}

std::string ordinal_word(unsigned day, core::Draws& draws) {
  if (day < 20) return std::string(kOrdinals[day]);
  if (day == 20) return "twentieth";
  if (day == 30) return "thirtieth";
  return joined(kTens[day / 10], kOrdinals[day % 10], draws);
}

std::string year_words(int year, core::Draws& draws) {
  const auto century = static_cast<unsigned>(year) / 100;
  const auto rest = static_cast<unsigned>(year) % 100;
  std::string hundreds =
      century == 20 ? "two thousand" : fmt::format("{} hundred", kCardinals[century]);
  if (rest == 0) return hundreds;
  const std::string last = cardinal(rest, draws);
  // "nineteen hundred and five" is rare, but "two thousand and five" is usual.
  if (century == 20 ? draws.once_in(2) : draws.once_in(8)) {
    return fmt::format("{} {}{}", hundreds, draws.once_in(3) ? "" : "and ", last);
  }
  return fmt::format("{} {}{}", cardinal(century, draws), rest < 10 ? "oh " : "", last);
}

}  // namespace qkv::app
