// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_NEAR_WORDS_H_
#define QKV_IO_NEAR_WORDS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/view.h>

namespace qkv::io {

// The fewest insertions, deletions, replacements and swaps of two neighbours from a to b, nothing
// being changed twice (Damerau 1964; optimal string alignment).
int edit_distance(std::u32string_view a, std::u32string_view b);

// The words of a stream that are spelled most like one word, in memory that does not grow with the
// stream. First come words of the same stem, those that start with two thirds of the letters
// ("walks": walk, walked, walking), then words in which at most a third of the letters differ
// ("walks": walls, talks), one letter in short words. Each group stands in the order of distance,
// then as the stream had them: a file of word vectors has the commoner word first.
class NearWords {
 public:
  // A word of the stream and the set of its letters, worked out once for all targets.
  struct Word {
    explicit Word(std::string_view word);
    std::string_view text;
    std::uint64_t letters;
  };

  // Keeps the best `count`.
  NearWords(std::string_view word, int count);

  // Whether `word` would be among the best so far. Most words are turned away by their length or
  // their set of letters alone.
  bool wants(const Word& word);
  // Takes the word that wants() just said true to.
  void take(const Word& word);

  // The nearest first.
  std::vector<std::string> best() const;

 private:
  struct Rank {
    bool other_stem = false;
    int distance = 0;
    auto operator<=>(const Rank&) const = default;
  };
  struct Candidate {
    Rank rank{};
    std::string word{};
  };

  bool may_be_near(const Word& word) const;

  std::u32string target_;
  std::uint64_t letters_ = 0;
  int bytes_per_letter_ = 1;
  int largest_distance_ = 0;
  std::string stem_;
  std::size_t count_ = 0;
  Rank rank_{};  // of the word that wants() saw last
  std::vector<Candidate> best_;
};

}  // namespace qkv::io

#endif  // QKV_IO_NEAR_WORDS_H_
