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

// The units of text that a translator reads and writes, as `qkv/app/tokenizer.h` defines them.
enum class Tokenization {
  kCharacter,
  kWord,
  kSubword,
};
enum class LetterCase { kKept, kLower };

// A token and its count in the training text.
struct CountedToken {
  std::string text{};
  Index count = 0;  // 0: not counted
  bool operator==(const CountedToken&) const = default;
};

// The tokens that a model knows, each with an id: four special ones, then those of a text, most
// frequent first, or in the order of uncounted(). A token of the text that is spelled like a
// special one is a different token: encode() never returns the special token's id for it.
class QKV_API Vocabulary {
 public:
  static constexpr std::int32_t kPadding = 0;  // "<pad>"
  static constexpr std::int32_t kStart = 1;    // "<s>"
  static constexpr std::int32_t kEnd = 2;      // "</s>"
  static constexpr std::int32_t kUnknown = 3;  // "<unk>": any token that is not in the vocabulary
  static constexpr std::int32_t kSpecials = 4;

  // A vocabulary of the special tokens alone.
  Vocabulary() = default;
  // The special tokens and `tokens` in the order of their ids: by descending count, then by their
  // bytes. Throws Error for another order, a duplicate, an empty token, one that is not UTF-8, a
  // count below 1 and more tokens than 32 bits can number.
  explicit Vocabulary(std::vector<CountedToken> tokens);
  // The special tokens and `tokens`, which have no counts, in the order of their ids. Throws Error
  // for a duplicate, an empty token, one that is not UTF-8 and more tokens than 32 bits can number.
  static Vocabulary uncounted(std::vector<std::string> tokens);

  Index size() const noexcept { return kSpecials + static_cast<Index>(tokens_.size()); }
  // The tokens without the special ones.
  std::span<const CountedToken> tokens() const noexcept { return tokens_; }
  // Throws Error for an id that is not in [0, size()).
  const std::string& token(std::int32_t id) const;

  // The ids of the tokens, followed by the end token.
  std::vector<std::int32_t> encode(std::span<const std::string> tokens) const;
  // The tokens of the ids before the first end token; special tokens appear as they are spelled.
  // Throws Error for an id among them that is not in [0, size()).
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
  // Adds one token that was seen `count` times.
  void add(const CountedToken& token) { counts_[token.text] += token.count; }
  // A vocabulary of the tokens seen at least `min_count` times, or of the `most` most frequent of
  // them (0: all). Throws Error for negative arguments and whatever Vocabulary() rejects.
  Vocabulary build(Index min_count = 1, Index most = 0) const;

 private:
  std::unordered_map<std::string, Index> counts_{};
};

// Writes a vocabulary atomically as one JSON document, {"tokens": [["e", 120], ...]}, with a token
// and its count on each line, without the special tokens. Throws OutputError.
QKV_API void write_vocabulary(const std::string& path, const Vocabulary& vocabulary);
// Reads a vocabulary. Throws InputError for a file that is missing or holds anything else.
QKV_API Vocabulary read_vocabulary(const std::string& path);

}  // namespace qkv::app

#endif  // QKV_APP_VOCABULARY_H_
