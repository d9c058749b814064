// SPDX-License-Identifier: Apache-2.0
#include "text/near_words.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace qkv::app {

std::size_t edit_distance(std::u32string_view a, std::u32string_view b, std::size_t most) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) return most + 1;
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> rows(3 * width);  // rows i-2, i-1 and i of the distance table
  std::size_t* row = rows.data();
  std::size_t* above = row + width;
  std::size_t* before = above + width;
  std::iota(row, row + width, std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({above[j - 1] + (same ? 0 : 1), above[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    // The minimum of a row is at least that of the row above, so the distance exceeds `most`.
    if (*std::min_element(row, row + width) > most) return most + 1;
  }
  return row[b.size()];
}

std::optional<Nearness> nearness(std::u32string_view word, std::u32string_view other) {
  // Longer words are not compared: the cost is quadratic in their length.
  constexpr std::size_t kMostLetters = 64;
  if (word.empty() || std::max(word.size(), other.size()) > kMostLetters) return std::nullopt;
  const std::size_t stem = std::max<std::size_t>(3, (word.size() * 2 + 2) / 3);
  const bool same_stem = other.starts_with(word.substr(0, stem));
  const std::size_t most = same_stem ? kMostLetters : std::max<std::size_t>(1, word.size() / 3);
  const std::size_t distance = edit_distance(word, other, most);
  if (distance > most) return std::nullopt;
  return Nearness{!same_stem, distance};
}

}  // namespace qkv::app
