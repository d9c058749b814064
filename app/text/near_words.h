// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_NEAR_WORDS_H_
#define QKV_TEXT_NEAR_WORDS_H_

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include <qkv/export.h>

namespace qkv::app {

// The edit distance from a to b: the number of insertions, deletions, replacements and swaps of two
// neighbours, with no substring edited twice (Damerau 1964; optimal string alignment). If the
// distance exceeds `most`, the result is any number above `most`.
QKV_API std::size_t edit_distance(std::u32string_view a, std::u32string_view b, std::size_t most);

// How near two words are: whether their stems differ, then the edit distance. A smaller pair means
// nearer words.
using Nearness = std::pair<bool, std::size_t>;

// How near the spelling of `other` is to a word; none if it is not near. Two words are near if they
// have the same stem, the first two thirds of the letters and at least three ("walks": walk,
// walked, walking), or if at most a third of the letters differ ("walks": walls, talks), one letter
// in short words. Words of more than 64 letters, which are addresses and junk, are near to no word.
QKV_API std::optional<Nearness> nearness(std::u32string_view word, std::u32string_view other);

}  // namespace qkv::app

#endif  // QKV_TEXT_NEAR_WORDS_H_
