// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_DATA_DATE_WORDS_H_
#define QKV_TRANSLATOR_DATA_DATE_WORDS_H_

#include <string>
#include <string_view>

#include "core/draws.h"

// English words of dates. If there are several spellings, one is drawn at random.
namespace qkv::app {

std::string_view month_name(unsigned month);      // 1..12: "September"
std::string_view short_month(unsigned month);     // "Sep"
std::string_view roman_month(unsigned month);     // "IX"
std::string_view weekday_name(unsigned weekday);  // 0..6: "Sunday"

// "Sep", "Sept", "Sep.", "Sept."; "May" has no abbreviation.
std::string abbreviated_month(unsigned month, core::Draws& draws);
// "Tue", "Tues", "Tue."
std::string abbreviated_weekday(unsigned weekday, core::Draws& draws);
// "3rd"
std::string ordinal_number(unsigned day);
// 1..31: "third", "twenty-first", "twenty first"
std::string ordinal_word(unsigned day, core::Draws& draws);
// 1900..2099: "nineteen eighty-seven", "nineteen oh five", "two thousand and ten", "twenty ten"
std::string year_words(int year, core::Draws& draws);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_DATE_WORDS_H_
