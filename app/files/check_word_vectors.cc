// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_set>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>
#include <qkv/error.h>

#include "files/vector_binary.h"
#include "files/vector_text.h"

namespace qkv::app {
namespace {

constexpr std::size_t kFirstWords = 10;
// The most distinct words remembered to count repetitions. They take 90 MB; remembering more would
// cost more than reading the file.
constexpr std::size_t kMostRemembered = std::size_t{1} << 21;

// Builds the summary of a file word by word.
class SummaryBuilder {
 public:
  explicit SummaryBuilder(VectorFormat format) { summary_.format = format; }

  void take(std::string_view word, const std::vector<float>& numbers) {
    if (summary_.count++ == 0 && !numbers.empty()) {
      summary_.smallest = summary_.largest = numbers[0];
    }
    for (const float number : numbers) {
      summary_.smallest = std::min(summary_.smallest, number);
      summary_.largest = std::max(summary_.largest, number);
    }
    if (word.find_first_of(" \t") != word.npos) ++summary_.words_with_blanks;
    if (utf8_prefix(word) < word.size()) ++summary_.words_not_utf8;
    if (summary_.first_words.size() < kFirstWords) summary_.first_words.emplace_back(word);
    remember(word);
  }
  VectorFileSummary result(Index width) {
    summary_.width = width;
    if (!forgotten_) summary_.repeated = repeated_;
    return summary_;
  }

 private:
  // Remembers a word, and counts it if it has occurred before. Words are remembered as 64-bit
  // hashes: among 2^21 words, two collide in one of 8 million files.
  void remember(std::string_view word) {
    if (forgotten_) return;
    if (!known_.insert(std::hash<std::string_view>()(word)).second) ++repeated_;
    if (known_.size() <= kMostRemembered) return;
    forgotten_ = true;
    known_ = {};
  }

  VectorFileSummary summary_{};
  std::unordered_set<std::uint64_t> known_{};
  Index repeated_ = 0;
  bool forgotten_ = false;
};

VectorFileSummary check_text(files::VectorText& text) {
  std::string_view line;
  std::vector<float> numbers;
  bool more = text.next(line);  // reads the optional header, too
  SummaryBuilder summary(text.header() ? VectorFormat::kTextWithHeader : VectorFormat::kText);
  for (; more; more = text.next(line)) {
    const auto parts = text.cut(line);
    text.parse(parts, numbers);
    summary.take(parts.word, numbers);
  }
  return summary.result(text.width());
}

VectorFileSummary check_binary(files::VectorBinary& binary) {
  files::VectorBinary::Record record;
  std::vector<float> numbers;
  SummaryBuilder summary(VectorFormat::kBinary);
  while (binary.next(record)) {
    binary.parse(record, numbers);
    summary.take(record.word, numbers);
  }
  return summary.result(binary.header().width);
}

}  // namespace

VectorFileSummary check_word_vectors(const std::string& path, const WordVectorOptions& options) {
  if (options.width < 0) throw Error("check_word_vectors", "width", "must not be negative");
  files::InputFile file(path, options.stop);
  if (files::is_vector_binary(file)) {
    files::VectorBinary binary(file, options.width, options.progress);
    return check_binary(binary);
  }
  files::VectorText text(file, options.width, 0, options.progress);
  return check_text(text);
}

}  // namespace qkv::app
