// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>
#include <qkv/error.h>

#include "files/vector_binary.h"
#include "files/vector_text.h"
#include "text/near_words.h"

namespace qkv::app {
namespace {

constexpr Index kConfirmedLines = 100;
// The most words for which near spellings are searched. Each line is compared with every missing
// word: with more of them, a large file would take minutes.
constexpr std::size_t kMostNear = 1000;

struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;
using TextSet = std::unordered_set<std::string, TextHash, std::equal_to<>>;

bool is_fit_to_print(std::string_view word) {
  return !word.empty() && quoted(word, word.size()) == fmt::format("\"{}\"", word);
}

// The requested words and the vectors found for them so far.
class Wanted {
 public:
  Wanted(std::span<const Spellings> words, int near);

  // Whether `field` is the first field of a requested spelling.
  bool may_begin(std::string_view field) const { return first_fields_.contains(field); }
  // Whether `word` is a requested spelling.
  bool contains(std::string_view word) const { return spelled_.contains(word); }
  // Whether the word is requested and not found yet.
  bool wants(std::string_view word) const;
  void found(std::string_view word, const std::vector<float>& numbers);
  bool all_found() const noexcept { return best_to_find_ == 0; }
  // Considers a word of the file as a near spelling of each missing word. `is_whole` is called only
  // for a word that is near enough to be added, and returns false for the first field of a longer
  // word. Of equally near words, the first ones stay, since such files have common words first.
  template <class IsWhole>
  void offer_as_near(std::string_view word, IsWhole&& is_whole);

  WordVectors result(Index width) const;

 private:
  // A requested spelling.
  struct Spelled {
    Index row = -1;     // row of its vector in values_; -1 until it is found
    bool best = false;  // whether it is the best spelling of some word
  };

  // A word without a vector so far, and the most similar spellings found, the nearest first.
  struct Missing {
    std::size_t word = 0;  // index into words_
    std::u32string letters{};
    std::vector<std::pair<Nearness, std::string>> near{};
  };

  bool is_found(const Spellings& spellings) const;

  std::span<const Spellings> words_;
  TextMap<Spelled> spelled_{};    // every spelling
  std::size_t best_to_find_ = 0;  // best spellings not found yet
  TextSet first_fields_{};        // the first field of every spelling
  Index rows_ = 0;
  std::vector<float> values_{};
  std::vector<Missing> missing_{};
  std::size_t near_ = 0;  // how many near spellings to report
};

Wanted::Wanted(std::span<const Spellings> words, int near)
    : words_(words), near_(static_cast<std::size_t>(std::max(near, 0))) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) throw Error("read_word_vectors", "words", "must each have a spelling");
    for (const std::string& spelling : words[i]) {
      Spelled& entry = spelled_[spelling];
      if (&spelling == &words[i].front() && !std::exchange(entry.best, true)) ++best_to_find_;
      first_fields_.emplace(files::first_field(spelling));
    }
    if (i >= kMostNear || near_ == 0) continue;
    missing_.push_back({i, from_utf8(words[i].back()).value_or(U"")});
  }
}

bool Wanted::wants(std::string_view word) const {
  const auto entry = spelled_.find(word);
  return entry != spelled_.end() && entry->second.row < 0;
}

void Wanted::found(std::string_view word, const std::vector<float>& numbers) {
  Spelled& entry = spelled_.find(word)->second;
  values_.insert(values_.end(), numbers.begin(), numbers.end());
  entry.row = rows_++;
  if (entry.best) --best_to_find_;
  std::erase_if(missing_, [&](const Missing& missing) { return is_found(words_[missing.word]); });
}

bool Wanted::is_found(const Spellings& spellings) const {
  return std::any_of(spellings.begin(), spellings.end(), [&](const std::string& spelling) {
    return spelled_.find(spelling)->second.row >= 0;
  });
}

template <class IsWhole>
void Wanted::offer_as_near(std::string_view word, IsWhole&& is_whole) {
  if (missing_.empty()) return;
  const auto letters = from_utf8(word);
  if (!letters) return;
  for (Missing& missing : missing_) {
    auto& near = missing.near;
    const auto rank = nearness(missing.letters, *letters);
    if (!rank || (near.size() == near_ && *rank >= near.back().first)) continue;
    if (std::ranges::find(near, word, [](const auto& n) { return n.second; }) != near.end())
      continue;
    if (!is_whole() || !is_fit_to_print(word)) return;
    const auto place =
        std::ranges::upper_bound(near, *rank, {}, [](const auto& n) { return n.first; });
    near.insert(place, {*rank, std::string(word)});
    near.resize(std::min(near.size(), near_));
  }
}

WordVectors Wanted::result(Index width) const {
  WordVectors result;
  result.vectors = Tensor(DType::kFloat32, {rows_, width});
  std::copy(values_.begin(), values_.end(), result.vectors.values<float>().begin());
  result.words.resize(words_.size());
  for (std::size_t i = 0; i < words_.size(); ++i) {
    for (const std::string& spelling : words_[i]) {
      if (const Index row = spelled_.find(spelling)->second.row; row >= 0) {
        result.words[i] = {row, spelling, {}};
        break;
      }
    }
  }
  for (const Missing& missing : missing_) {
    for (const auto& [rank, word] : missing.near) result.words[missing.word].near.push_back(word);
  }
  return result;
}

// Reads a text file. After the first kConfirmedLines, only lines whose first field begins a
// requested spelling are parsed.
WordVectors read_text(files::VectorText& text, Wanted& wanted) {
  std::string_view line;
  std::vector<float> numbers;
  while (!wanted.all_found() && text.next(line)) {
    const std::string_view first = files::first_field(line);
    if (wanted.may_begin(first)) {
      const auto parts = text.cut(line);
      const bool wants = wanted.wants(parts.word);
      // A line "cat 0.5 ..." where "cat" is requested may have a number too many: parse() checks
      // it.
      if (wants || wanted.contains(first)) text.parse(parts, numbers);
      if (wants) wanted.found(parts.word, numbers);
    }
    wanted.offer_as_near(first, [&] { return text.cut(line).word == first; });
  }
  return wanted.result(text.width());
}

WordVectors read_binary(files::VectorBinary& binary, Wanted& wanted) {
  files::VectorBinary::Record record;
  std::vector<float> numbers;
  while (!wanted.all_found() && binary.next(record)) {
    if (wanted.wants(record.word)) {
      binary.parse(record, numbers);
      wanted.found(record.word, numbers);
    }
    wanted.offer_as_near(record.word, [] { return true; });
  }
  return wanted.result(binary.header().width);
}

WordVectors read_once(files::InputFile& file, std::span<const Spellings> words, int near,
                      const WordVectorOptions& options) {
  Wanted wanted(words, near);
  if (files::is_vector_binary(file)) {
    files::VectorBinary binary(file, options.width, options.progress);
    return read_binary(binary, wanted);
  }
  files::VectorText text(file, options.width, kConfirmedLines, options.progress);
  return read_text(text, wanted);
}

// Reads the file again for near spellings if words are missing. A search in the first pass, for
// words that most likely come later, would make reading a file of similar words six times as slow.
void add_near(WordVectors& result, const std::string& path, std::span<const Spellings> words,
              const WordVectorOptions& options) {
  std::vector<Spellings> missing;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < std::min(words.size(), kMostNear); ++i) {
    if (result.words[i].row >= 0) continue;
    missing.push_back(words[i]);
    places.push_back(i);
  }
  if (missing.empty()) return;
  files::InputFile file(path, options.stop);
  WordVectors again = read_once(file, missing, options.near, options);
  for (std::size_t i = 0; i < places.size(); ++i) {
    result.words[places[i]].near = std::move(again.words[i].near);
  }
}

}  // namespace

WordVectors read_word_vectors(const std::string& path, std::span<const Spellings> words,
                              const WordVectorOptions& options) {
  if (options.width < 0) throw Error("read_word_vectors", "width", "must not be negative");
  files::InputFile file(path, options.stop);
  const bool can_return = path != "-" && file.size();
  WordVectors result = read_once(file, words, can_return ? 0 : options.near, options);
  if (can_return && options.near > 0) add_near(result, path, words, options);
  return result;
}

}  // namespace qkv::app
