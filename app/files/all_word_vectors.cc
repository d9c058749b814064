// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/word_vectors.h>
#include <qkv/error.h>

#include "files/vector_binary.h"
#include "files/vector_text.h"

namespace qkv::app {
namespace {

// Collects different words and their vectors, up to a number of words.
class Collected {
 public:
  explicit Collected(Index most) : most_(most) {}

  bool is_full() const noexcept { return std::ssize(words_) >= most_; }
  bool has(std::string_view word) const { return known_.contains(word); }
  // Adds a word for which has() is false.
  void add(std::string_view word, const std::vector<float>& numbers) {
    known_.insert(words_.emplace_back(word));
    if (blocks_.empty() || blocks_.back().size() + numbers.size() > blocks_.back().capacity()) {
      blocks_.emplace_back().reserve(std::max(kBlock, numbers.size()));
    }
    blocks_.back().insert(blocks_.back().end(), numbers.begin(), numbers.end());
  }

  // Moves the words and vectors out. Each block is freed as soon as it is copied.
  WordTable result(Index width) {
    WordTable table;
    table.vectors = Tensor(DType::kFloat32, {std::ssize(words_), width});
    auto* next = table.vectors.values<float>().data();
    for (; !blocks_.empty(); blocks_.pop_front()) {
      next = std::copy(blocks_.front().begin(), blocks_.front().end(), next);
    }
    known_.clear();
    table.words.assign(std::move_iterator(words_.begin()), std::move_iterator(words_.end()));
    return table;
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 20;  // numbers

  Index most_;
  std::deque<std::string> words_{};  // a deque never moves the texts, which known_ views
  std::unordered_set<std::string_view> known_{};
  std::deque<std::vector<float>> blocks_{};
};

WordTable read_text(files::VectorText& text, Collected& all) {
  std::string_view line;
  std::vector<float> numbers;
  while (!all.is_full() && text.next(line)) {
    const auto parts = text.cut(line);
    text.parse(parts, numbers);
    if (!all.has(parts.word)) all.add(parts.word, numbers);
  }
  return all.result(text.width());
}

WordTable read_binary(files::VectorBinary& binary, Collected& all) {
  files::VectorBinary::Record record;
  std::vector<float> numbers;
  while (!all.is_full() && binary.next(record)) {
    binary.parse(record, numbers);
    if (!all.has(record.word)) all.add(record.word, numbers);
  }
  return all.result(binary.header().width);
}

}  // namespace

WordTable read_all_word_vectors(const std::string& path, std::optional<Index> most_words,
                                const WordVectorOptions& options) {
  constexpr std::string_view kName = "read_all_word_vectors";
  if (options.width < 0) throw Error(kName, "width", "must not be negative");
  if (most_words && *most_words < 1) {
    throw Error(kName, "most_words", fmt::format("must be at least 1, got {}", *most_words));
  }
  Collected all(most_words.value_or(std::numeric_limits<Index>::max()));
  files::InputFile file(path, options.stop);
  if (files::is_vector_binary(file)) {
    files::VectorBinary binary(file, options.width, options.progress);
    return read_binary(binary, all);
  }
  files::VectorText text(file, options.width, 0, options.progress);
  return read_text(text, all);
}

}  // namespace qkv::app
