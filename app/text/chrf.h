// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CHRF_H_
#define QKV_TEXT_CHRF_H_

#include <array>
#include <span>
#include <string>
#include <string_view>

#include <qkv/export.h>
#include <qkv/view.h>

// How well translations match their references, by letters: Popović 2015, "chrF: character n-gram
// F-score for automatic MT evaluation", with beta = 2 (Popović 2016). White space is removed; a
// character is a code point. For n = 1..6, p_n is the share of the n-grams of the translations that
// match, each at most as often as the reference has it, and r_n the share of those of the
// references. With their means P and R over the orders of which both sides have n-grams
//   chrF2 = 5 P R / (4 P + R).
// Of several references a sentence counts with the one for which its own chrF2 is the largest, the
// first of equal ones, as in sacreBLEU, whose default the mean over such orders is too (eff:yes).
namespace qkv::app {

inline constexpr int kChrfOrders = 6;  // n-grams of 1 to 6 characters

// What a sentence adds to the score of its corpus. Counts of sentences are added.
struct ChrfCounts {
  std::array<Index, kChrfOrders> hypothesis{};  // n-grams; 0 where the reference has none
  std::array<Index, kChrfOrders> reference{};
  std::array<Index, kChrfOrders> matches{};

  QKV_API ChrfCounts& operator+=(const ChrfCounts& other);
};

// At least one reference. Throws Error (argument "text") for invalid UTF-8.
QKV_API ChrfCounts chrf_counts(std::string_view hypothesis,
                               std::span<const std::string> references);
// 0 to 100.
QKV_API double chrf_of(const ChrfCounts& counts);

}  // namespace qkv::app

#endif  // QKV_TEXT_CHRF_H_
