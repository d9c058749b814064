// SPDX-License-Identifier: Apache-2.0
#include "io/near_words.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

#include <qkv/app/utf8.h>

namespace qkv::io {
namespace {

// Longer ones are addresses and rubbish; comparing them would cost the square of their length.
constexpr std::size_t kMostLetters = 64;

// A bit for each byte value, modulo 64.
std::uint64_t letter_set(std::string_view bytes) {
  std::uint64_t set = 0;
  for (const char byte : bytes) set |= std::uint64_t{1} << (static_cast<unsigned char>(byte) & 63);
  return set;
}

bool is_printable(char32_t c) { return c > 0x20 && (c < 0x7F || c > 0xA0); }

}  // namespace

int edit_distance(std::u32string_view a, std::u32string_view b) {
  std::vector<int> before(b.size() + 1);  // rows i-1, i and i+1 of the table of distances
  std::vector<int> row(b.size() + 1);
  std::vector<int> next(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    next[0] = static_cast<int>(i) + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      next[j + 1] = std::min({row[j] + (a[i] == b[j] ? 0 : 1), row[j + 1] + 1, next[j] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
      }
    }
    before.swap(row);
    row.swap(next);
  }
  return row.back();
}

NearWords::Word::Word(std::string_view word) : text(word), letters(letter_set(word)) {}

NearWords::NearWords(std::string_view word, int count)
    : target_(app::from_utf8(word).value_or(U"")),
      letters_(letter_set(word)),
      bytes_per_letter_(word.size() == target_.size() ? 1 : 4),
      largest_distance_(std::max(1, static_cast<int>(target_.size() / 3))),
      stem_(
          app::to_utf8(target_.substr(0, std::max<std::size_t>(3, (target_.size() * 2 + 2) / 3)))),
      count_(target_.size() > kMostLetters ? 0 : static_cast<std::size_t>(std::max(0, count))) {
  if (target_.empty()) count_ = 0;
}

// Whether edits could bring `word` near enough, judged by what is cheap to know. Each edit but a
// swap takes at most one code point out of the target: one byte, or up to four beyond ASCII.
bool NearWords::may_be_near(const Word& word) const {
  const auto reach = static_cast<std::size_t>(largest_distance_);
  const std::size_t bytes = word.text.size();
  if (bytes + reach < target_.size() || bytes > 4 * (target_.size() + reach)) return false;
  return std::popcount(letters_ & ~word.letters) <= largest_distance_ * bytes_per_letter_;
}

bool NearWords::wants(const Word& word) {
  if (count_ == 0) return false;
  const bool shares_stem = word.text.starts_with(stem_);
  if (!shares_stem && !may_be_near(word)) return false;
  if (word.text.size() > 4 * kMostLetters) return false;
  const auto letters = app::from_utf8(word.text);
  if (!letters || letters->size() > kMostLetters ||
      !std::all_of(letters->begin(), letters->end(), is_printable)) {
    return false;
  }
  const int distance = edit_distance(target_, *letters);
  if (!shares_stem && distance > largest_distance_) return false;
  rank_ = {!shares_stem, distance};
  const bool known = std::any_of(best_.begin(), best_.end(),
                                 [&](const Candidate& c) { return c.word == word.text; });
  return !known && (best_.size() < count_ || rank_ < best_.back().rank);
}

void NearWords::take(const Word& word) {
  if (best_.size() == count_) best_.pop_back();
  const auto place =
      std::upper_bound(best_.begin(), best_.end(), rank_,
                       [](const Rank& rank, const Candidate& c) { return rank < c.rank; });
  best_.insert(place, {rank_, std::string(word.text)});
}

std::vector<std::string> NearWords::best() const {
  std::vector<std::string> words;
  words.reserve(best_.size());
  for (const Candidate& candidate : best_) words.push_back(candidate.word);
  return words;
}

}  // namespace qkv::io
