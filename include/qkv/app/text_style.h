// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TEXT_STYLE_H_
#define QKV_APP_TEXT_STYLE_H_

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <qkv/app/vocabulary.h>
#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv::app {

// The side of a punctuation mark on which it has a space: "(" before it, "," after it, a dash on
// both sides. Between two marks there is a space if both have one there.
enum class Spaces { kNone, kBefore, kAfter, kBoth };

enum class SentenceStart { kKept, kCapital };

// The features of a language's text that its tokens leave out, as learned from text: the spaces,
// and the capitals if tokens are in lower case.
struct TextStyle {
  // The spaces of each mark. Other marks are spaced as in English. A straight quotation mark is
  // never listed: the first one opens, the next one closes.
  std::map<std::string, Spaces> spaces{};
  // The spelling of words within a sentence, by their lower case; only words that have a capital.
  std::map<std::string, std::string> words{};
  SentenceStart sentences = SentenceStart::kKept;

  bool operator==(const TextStyle&) const = default;
};

// Returns lower-case tokens with the capitals of the style.
QKV_API std::vector<std::string> with_capitals(std::vector<std::string> words,
                                               const TextStyle& style);
// Returns lower-case text with the capitals of the style; its white space is unchanged.
QKV_API std::string with_capitals(std::string_view text, const TextStyle& style);

// Learns a style from text. Throws Error for text that is not UTF-8.
class QKV_API TextStyleBuilder {
 public:
  // Learns the features that tokens of this kind leave out: spaces if they are words, capitals if
  // they are in lower case.
  TextStyleBuilder(Tokenization tokenization, LetterCase letters)
      : tokenization_(tokenization), letters_(letters) {}

  void add(std::string_view text);
  // Adds the counts of another builder of the same kind.
  void add(const TextStyleBuilder& other);
  // The most frequent style of each mark next to a word and of each word within a sentence (as in
  // the truecasing of Moses, Koehn et al. 2007).
  TextStyle build() const;

 private:
  struct SpaceCounts {
    Index before[2] = {0, 0};  // marks without and with a space before them
    Index after[2] = {0, 0};   // marks without and with a space after them
  };

  void count_spaces(std::span<const std::string_view> tokens);
  void count_words(std::span<const std::string_view> tokens);

  Tokenization tokenization_;
  LetterCase letters_;
  std::map<std::string, SpaceCounts> marks_{};
  // Counts of spellings, by lower case.
  std::unordered_map<std::string, std::map<std::string, Index>> forms_{};
  Index starts_[2] = {0, 0};  // sentences that start with a small letter, and with a capital
};

}  // namespace qkv::app

#endif  // QKV_APP_TEXT_STYLE_H_
