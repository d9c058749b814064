// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_VOCABULARY_H_
#define QKV_APP_VOCABULARY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// A translator's units of text, as `qkv/app/tokenizer.h` has them.
enum class Tokenization {
  kCharacter,
  kWord,
  kSubword,
};
enum class LetterCase { kKept, kLower };

// A token and its count.
struct CountedToken {
  std::string text{};
  Index count = 0;  // 0: not counted
  bool operator==(const CountedToken&) const = default;
};

// The tokens that a model knows, numbered: four special ones, then those of a text, most frequent
// first, or in an order of their own. A token of the text that is spelled like a special one is a
// different token: encode() never returns the special one for it.
class QKV_API Vocabulary {
 public:
  static constexpr std::int32_t kPadding = 0;  // "<pad>"
  static constexpr std::int32_t kStart = 1;    // "<s>"
  static constexpr std::int32_t kEnd = 2;      // "</s>"
  static constexpr std::int32_t kUnknown = 3;  // "<unk>": a token that is not here
  static constexpr std::int32_t kSpecials = 4;

  // The special tokens alone.
  Vocabulary() = default;
  // And these, in the order of their ids: by descending count, then by their bytes.
  // Throws Error for another order, a duplicate, an empty token, one that is not UTF-8, a count
  // below 1 and more tokens than 32 bits can number.
  explicit Vocabulary(std::vector<CountedToken> tokens);
  // And these, which were not counted, in the order of their ids. Throws Error for the same, except
  // the order and the counts.
  static Vocabulary uncounted(std::vector<std::string> tokens);

  Index size() const noexcept { return kSpecials + static_cast<Index>(tokens_.size()); }
  // Without the special ones.
  std::span<const CountedToken> tokens() const noexcept { return tokens_; }
  // Throws Error for an id that is not below size().
  const std::string& token(std::int32_t id) const;

  // The ids of the tokens, and the end token.
  std::vector<std::int32_t> encode(std::span<const std::string> tokens) const;
  // The tokens of the ids before the first end token; special ones as they are spelled. Throws
  // Error for an id that is not below size().
  std::vector<std::string> decode(std::span<const std::int32_t> ids) const;

 private:
  void number();

  std::vector<CountedToken> tokens_{};
  std::unordered_map<std::string, std::int32_t> ids_{};
};

// Counts the tokens of a text. Memory grows with the distinct tokens, not with the text.
class QKV_API VocabularyBuilder {
 public:
  void add(std::span<const std::string> tokens);
  // One token, seen `count` times.
  void add(const CountedToken& token) { counts_[token.text] += token.count; }
  // The tokens seen at least `min_count` times; of these the `most` frequent (0: all). Throws
  // Error for negative arguments and whatever Vocabulary() rejects.
  Vocabulary build(Index min_count = 1, Index most = 0) const;

 private:
  std::unordered_map<std::string, Index> counts_{};
};

// A vocabulary as a file: one JSON document, {"tokens": [["e", 120], ...]}, a token and its count
// on each line, without the special ones. Written atomically. Throws OutputError.
QKV_API void write_vocabulary(const std::string& path, const Vocabulary& vocabulary);
// Throws InputError for a file that is missing or holds anything else.
QKV_API Vocabulary read_vocabulary(const std::string& path);

}  // namespace qkv::app

#endif  // QKV_APP_VOCABULARY_H_
