// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CHRF_H_
#define QKV_TEXT_CHRF_H_

#include <array>
#include <span>
#include <string>
#include <string_view>

#include <qkv/export.h>
#include <qkv/view.h>

// chrF2, which measures by characters how well translations match their references: Popović 2015,
// "chrF: character n-gram F-score for automatic MT evaluation", with beta = 2 (Popović 2016). White
// space is removed; a character is a code point. For n = 1..6, p_n is the share of the n-grams of
// the translations that match, each at most as often as the reference has it, and r_n the share of
// the n-grams of the references that match. Let P and R be their means over the orders n for which
// both sides have n-grams, which is sacreBLEU's default (eff:yes). Then
//   chrF2 = 5 P R / (4 P + R).
// A sentence with several references counts with the reference that gives it the largest chrF2, the
// first one of equal scores, as in sacreBLEU.
namespace qkv::app {

inline constexpr int kChrfOrders = 6;  // n-grams of 1 to 6 characters

// The counts of one sentence. The score of a corpus comes from the sum of its sentences' counts.
struct ChrfCounts {
  std::array<Index, kChrfOrders> hypothesis{};  // n-grams; 0 where the reference has none
  std::array<Index, kChrfOrders> reference{};
  std::array<Index, kChrfOrders> matches{};

  QKV_API ChrfCounts& operator+=(const ChrfCounts& other);
};

// Counts the n-grams of one sentence. There must be at least one reference. Throws Error (argument
// "text") for invalid UTF-8.
QKV_API ChrfCounts chrf_counts(std::string_view hypothesis,
                               std::span<const std::string> references);
// The chrF2 of counts, from 0 to 100.
QKV_API double chrf_of(const ChrfCounts& counts);

}  // namespace qkv::app

#endif  // QKV_TEXT_CHRF_H_
