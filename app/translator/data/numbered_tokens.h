// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_DATA_NUMBERED_TOKENS_H_
#define QKV_TRANSLATOR_DATA_NUMBERED_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <qkv/app/vocabulary.h>

namespace qkv::app {

// Holds texts as token numbers until their vocabulary is known. Tokens are numbered in the order in
// which they first occur. A token takes 4 bytes instead of 32 or more as a string.
class NumberedTexts {
 public:
  using Text = std::vector<std::int32_t>;

  void add(std::span<const std::string> tokens) {
    Text& text = texts_.emplace_back();
    text.reserve(tokens.size() + 1);  // one more for the end token
    for (const std::string& token : tokens) text.push_back(number(token, 1));
  }

  // Appends the texts of `other`, adds its token counts, and leaves `other` empty.
  void append(NumberedTexts&& other) {
    Text numbers;
    for (const CountedToken& token : other.tokens_) {
      numbers.push_back(number(token.text, token.count));
    }
    for (Text& text : other.texts_) {
      for (std::int32_t& n : text) n = numbers[static_cast<std::size_t>(n)];
      texts_.push_back(std::move(text));
    }
    other = {};
  }

  // The vocabulary of the tokens that occur at least `min_count` times.
  Vocabulary vocabulary(Index min_count) const {
    VocabularyBuilder vocabulary;
    for (const CountedToken& token : tokens_) vocabulary.add(token);
    return vocabulary.build(min_count);
  }

  // Returns each text's token ids, the end token last, and leaves this object empty.
  std::vector<Text> take_ids(const Vocabulary& vocabulary) {
    std::vector<std::string> tokens;
    tokens.reserve(tokens_.size());
    for (const CountedToken& token : tokens_) tokens.push_back(token.text);
    const Text ids = vocabulary.encode(tokens);
    for (Text& text : texts_) {
      for (std::int32_t& n : text) n = ids[static_cast<std::size_t>(n)];
      text.push_back(Vocabulary::kEnd);
    }
    std::vector<Text> all = std::move(texts_);
    *this = {};
    return all;
  }

 private:
  // Returns the token's number and adds `count` to the count of the token.
  std::int32_t number(const std::string& token, Index count) {
    const auto next = static_cast<std::int32_t>(tokens_.size());
    const auto [found, is_new] = numbers_.try_emplace(token, next);
    if (is_new) tokens_.push_back({token, 0});
    tokens_[static_cast<std::size_t>(found->second)].count += count;
    return found->second;
  }

  std::unordered_map<std::string, std::int32_t> numbers_{};
  std::vector<CountedToken> tokens_{};
  std::vector<Text> texts_{};
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_DATA_NUMBERED_TOKENS_H_
