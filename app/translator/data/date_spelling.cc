// SPDX-License-Identifier: Apache-2.0
#include "translator/data/date_spelling.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "translator/data/date_words.h"

namespace qkv::app {
namespace {

// A spelling of a day. A field in braces stands for a part of the date, and is named after that
// part's spelling on Sunday, 3 May 1987, or in September. Other text is literal. Forms are drawn in
// proportion to their weights. All-numeric forms must be unambiguous: if the year is last, the day
// is first; if the year is first, the month is second.
struct Form {
  std::uint32_t weight;
  std::string_view pattern;
};
constexpr Form kForms[] = {
    // numbers
    {3, "{1987}-{05}-{03}"},
    {2, "{1987}/{05}/{03}"},
    {1, "{1987}.{05}.{03}"},
    {1, "{1987} {05} {03}"},
    {2, "{1987}{05}{03}"},
    {4, "{3}.{5}.{1987}"},
    {3, "{03}.{05}.{1987}"},
    {1, "{3}. {5}. {1987}"},
    {3, "{3}/{5}/{1987}"},
    {4, "{03}/{05}/{1987}"},
    {1, "{3}-{5}-{1987}"},
    {2, "{03}-{05}-{1987}"},
    {1, "{03} {05} {1987}"},
    {2, "{3}.{V}.{1987}"},
    {1, "{3} {V} {1987}"},
    // the month first
    {8, "{May} {3}, {1987}"},
    {6, "{May} {3rd}, {1987}"},
    {3, "{May} the {3rd}, {1987}"},
    {1, "{May} {3} of {1987}"},
    {4, "{Sept.} {3}, {1987}"},
    {2, "{Sept.} {3rd}, {1987}"},
    // the day first
    {8, "{3} {May} {1987}"},
    {2, "{3} {May}, {1987}"},
    {1, "{3}. {May} {1987}"},
    {1, "{3} of {May} {1987}"},
    {4, "{3rd} {May} {1987}"},
    {3, "{3rd} of {May} {1987}"},
    {4, "{3rd} of {May}, {1987}"},
    {6, "the {3rd} of {May}, {1987}"},
    {1, "the {3rd} {May} {1987}"},
    {1, "on the {3rd} of {May} {1987}"},
    {4, "{3} {Sept.} {1987}"},
    {1, "{3rd} {Sept.}, {1987}"},
    {1, "{3rd} of {Sept.} {1987}"},
    {2, "{03} {Sep} {1987}"},
    {2, "{3}-{Sep}-{1987}"},
    {1, "{03}/{Sep}/{1987}"},
    {1, "{03}{Sep}{1987}"},
    // the year first
    {2, "{1987} {May} {3}"},
    {2, "{1987}, {May} {3}"},
    {1, "{1987}, {3} {May}"},
    {1, "{1987}, the {3rd} of {May}"},
    {1, "{1987} {Sep} {03}"},
    {1, "{1987}-{Sep}-{03}"},
    // with the day of the week
    {4, "{Sunday}, {May} {3}, {1987}"},
    {1, "{Sunday}, {May} {3rd}, {1987}"},
    {3, "{Sunday}, {3} {May} {1987}"},
    {2, "{Sunday} {3} {May} {1987}"},
    {2, "{Sunday} the {3rd} of {May}, {1987}"},
    {1, "{3} {May} {1987} ({Sunday})"},
    {1, "{Sun.}, {May} {3}, {1987}"},
    {2, "{Sun.}, {3} {Sept.} {1987}"},
    {2, "{Sun.} {3} {Sept.} {1987}"},
    {1, "{Sun.} {Sep} {3} {1987}"},
    {1, "{1987}-{05}-{03} {Sun.}"},
    // in words
    {2, "{third} of {May} {1987}"},
    {3, "the {third} of {May}, {1987}"},
    {1, "the {third} day of {May}, {1987}"},
    {1, "{May} {third}, {1987}"},
    {2, "{May} the {third}, {1987}"},
    {2, "{3} {May} {nineteen}"},
    {2, "{May} {3}, {nineteen}"},
    {2, "{third} of {May} {nineteen}"},
    {2, "the {third} of {May}, {nineteen}"},
    {1, "{May} the {third}, {nineteen}"},
    // with the word year or day
    {1, "the {3rd} day of {May}, {1987}"},
    {1, "{3rd} day of {May} in the year {1987}"},
    {1, "{3} {May} in the year {1987}"},
    {1, "in the year {1987}, on {May} {3}"},
    {1, "{3} {May} AD {1987}"},
};
constexpr std::uint32_t kTotalWeight =
    std::accumulate(std::begin(kForms), std::end(kForms), std::uint32_t{0},
                    [](std::uint32_t sum, const Form& form) { return sum + form.weight; });

struct Parts {
  int year;
  unsigned month;
  unsigned day;
  unsigned weekday;  // 0: Sunday
};

struct Field {
  std::string_view name;
  std::string (*text)(const Parts& parts, core::Draws& draws);
};
constexpr Field kFields[] = {
    {"3", [](const Parts& p, core::Draws&) { return fmt::format("{}", p.day); }},
    {"03", [](const Parts& p, core::Draws&) { return fmt::format("{:02}", p.day); }},
    {"3rd", [](const Parts& p, core::Draws&) { return ordinal_number(p.day); }},
    {"third", [](const Parts& p, core::Draws& draws) { return ordinal_word(p.day, draws); }},
    {"5", [](const Parts& p, core::Draws&) { return fmt::format("{}", p.month); }},
    {"05", [](const Parts& p, core::Draws&) { return fmt::format("{:02}", p.month); }},
    {"V", [](const Parts& p, core::Draws&) { return std::string(roman_month(p.month)); }},
    {"May", [](const Parts& p, core::Draws&) { return std::string(month_name(p.month)); }},
    {"Sep", [](const Parts& p, core::Draws&) { return std::string(short_month(p.month)); }},
    {"Sept.", [](const Parts& p, core::Draws& draws) { return abbreviated_month(p.month, draws); }},
    {"1987", [](const Parts& p, core::Draws&) { return fmt::format("{}", p.year); }},
    {"nineteen", [](const Parts& p, core::Draws& draws) { return year_words(p.year, draws); }},
    {"Sunday", [](const Parts& p, core::Draws&) { return std::string(weekday_name(p.weekday)); }},
    {"Sun.",
     [](const Parts& p, core::Draws& draws) { return abbreviated_weekday(p.weekday, draws); }},
};

std::string_view drawn_pattern(core::Draws& draws) {
  std::uint32_t drawn = draws.below(kTotalWeight);
  const Form* form = std::begin(kForms);
  for (; drawn >= form->weight; ++form) drawn -= form->weight;
  return form->pattern;
}

// Returns the pattern with its fields replaced by the parts of the date.
std::string filled(std::string_view pattern, const Parts& parts, core::Draws& draws) {
  std::string text;
  for (std::size_t open = pattern.find('{'); open != pattern.npos; open = pattern.find('{')) {
    const std::size_t close = pattern.find('}', open);
    const std::string_view name = pattern.substr(open + 1, close - open - 1);
    text += pattern.substr(0, open);
    text += std::ranges::find(kFields, name, &Field::name)->text(parts, draws);
    pattern.remove_prefix(close + 1);
  }
  return text.append(pattern);
}

// Case conversion of ASCII letters only.
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Keeps the letters' case with probability 6/10, else makes all lower case (3/10) or upper (1/10).
void change_letters(std::string& text, core::Draws& draws) {
  const std::uint32_t tenth = draws.below(10);
  if (tenth >= 6) std::ranges::transform(text, text.begin(), tenth < 9 ? lower : upper);
}

// Sometimes removes the commas, or puts a space before the first one.
void change_commas(std::string& text, core::Draws& draws) {
  if (text.find(',') == text.npos) return;
  const std::uint32_t twentieth = draws.below(20);
  if (twentieth < 4) std::erase(text, ',');
  if (twentieth == 4) text.insert(text.find(','), 1, ' ');
}

// Doubles one space of the text with probability 1/16.
void double_blank(std::string& text, core::Draws& draws) {
  const auto blanks = static_cast<std::uint32_t>(std::ranges::count(text, ' '));
  if (blanks == 0 || !draws.once_in(16)) return;
  std::size_t at = text.find(' ');
  for (std::uint32_t n = draws.below(blanks); n > 0; --n) at = text.find(' ', at + 1);
  text.insert(at, 1, ' ');
}

}  // namespace

std::string spelled(std::chrono::sys_days day, core::Draws& draws) {
  const std::chrono::year_month_day date(day);
  const Parts parts{static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                    static_cast<unsigned>(date.day()), std::chrono::weekday(day).c_encoding()};
  std::string text = filled(drawn_pattern(draws), parts, draws);
  change_letters(text, draws);
  change_commas(text, draws);
  double_blank(text, draws);
  return text;
}

}  // namespace qkv::app
