// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_DATA_DATE_WORDS_H_
#define QKV_TRANSLATOR_DATA_DATE_WORDS_H_

#include <string>
#include <string_view>

#include "core/draws.h"

// English words of dates. A function with `draws` draws one of several spellings at random.
namespace qkv::app {

std::string_view month_name(unsigned month);      // 1..12: "September"
std::string_view short_month(unsigned month);     // 1..12: "Sep"
std::string_view roman_month(unsigned month);     // 1..12: "IX"
std::string_view weekday_name(unsigned weekday);  // 0..6: "Sunday"

// The month's abbreviation: "Sep", "Sept", "Sep.", "Sept."; for May always "May".
std::string abbreviated_month(unsigned month, core::Draws& draws);
// The weekday's abbreviation: "Tue", "Tues", "Tue."
std::string abbreviated_weekday(unsigned weekday, core::Draws& draws);
// The ordinal number of a day 1..31 in digits: "3rd"
std::string ordinal_number(unsigned day);
// The ordinal number of a day 1..31 in words: "third", "twenty-first", "twenty first"
std::string ordinal_word(unsigned day, core::Draws& draws);
// A year 1900..2099 in words: "nineteen eighty-seven", "nineteen oh five", "two thousand and ten",
// "twenty ten"
std::string year_words(int year, core::Draws& draws);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_DATE_WORDS_H_
