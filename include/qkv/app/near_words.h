// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_NEAR_WORDS_H_
#define QKV_APP_NEAR_WORDS_H_

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include <qkv/export.h>

namespace qkv::app {

// The fewest insertions, deletions, replacements and swaps of two neighbours from a to b, nothing
// being changed twice (Damerau 1964; optimal string alignment); any larger number for more than
// `most`.
QKV_API std::size_t edit_distance(std::u32string_view a, std::u32string_view b, std::size_t most);

// Less is nearer: whether the stems differ, then the distance.
using Nearness = std::pair<bool, std::size_t>;

// How near `other` is spelled to a word; nothing where it is not. Near are words of the
// same stem, those that start with two thirds of the letters ("walks": walk, walked, walking), and
// words in which at most a third of the letters differ ("walks": walls, talks), one letter in short
// words. Words of more than 64 letters, which are addresses and rubbish, are near to none.
QKV_API std::optional<Nearness> nearness(std::u32string_view word, std::u32string_view other);

}  // namespace qkv::app

#endif  // QKV_APP_NEAR_WORDS_H_
