// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TOKENIZER_H_
#define QKV_APP_TOKENIZER_H_

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <qkv/app/subwords.h>
#include <qkv/app/text_style.h>
#include <qkv/app/vocabulary.h>
#include <qkv/export.h>

namespace qkv::app {

// Units that a reader calls characters: a letter with its marks, an emoji, a blank.
struct Characters {};
// Units that are words and punctuation marks.
struct Words {};

// Splits text into tokens and joins tokens to text. A Tokenizer is a value: copies are cheap, and
// several threads may use one at once.
class QKV_API Tokenizer {
 public:
  using Units = std::variant<Characters, Words, Subwords>;

  // A tokenizer of characters that keeps their case.
  Tokenizer() = default;
  explicit Tokenizer(Units units, LetterCase letters = LetterCase::kKept)
      : units_(std::move(units)), letters_(letters) {}

  const Units& units() const noexcept { return units_; }
  LetterCase letters() const noexcept { return letters_; }
  Tokenization tokenization() const;

  // The tokens of a text. A text may be typed or typeset: ’ and ‘ are read as ', “ and ” as ", and
  // so are their low and prime forms. Throws Error for text that is not UTF-8.
  std::vector<std::string> split(std::string_view text) const;
  // The tokens of a text, with the letter case of the text. If there are more or fewer of them than
  // split() gives, or if the tokens are subwords, the result is that of split().
  std::vector<std::string> split_as_typed(std::string_view text) const;
  // The text of the tokens, in the tokens' own letter case. Words are spaced as people
  // write: `Hi , " Tom " !` gives `Hi, "Tom"!`, which restores text that follows the style, except
  // for the kind and width of white space. Characters are concatenated, which restores all text.
  // Subwords are joined by Subwords::join().
  std::string join(std::span<const std::string> tokens, const TextStyle& style = {}) const;

 private:
  Units units_{};
  LetterCase letters_ = LetterCase::kKept;
};

// A text as tokenizers read it before they split it: with straight quotation marks, and in lower
// case if `letters` is kLower.
QKV_API std::string as_read(std::string_view text, LetterCase letters);

}  // namespace qkv::app

#endif  // QKV_APP_TOKENIZER_H_
