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

// Where a punctuation mark has spaces: "(" before it, "," after it, a dash on both sides. Between
// two marks there is one if both have it there.
enum class Spaces { kNone, kBefore, kAfter, kBoth };

enum class SentenceStart { kKept, kCapital };

// What the tokens of a language leave out of its text, as learned from text: where spaces are, and,
// of tokens in lower case, the capitals.
struct TextStyle {
  // Marks that are not here are spaced as in English. A straight quotation mark is never here: the
  // first opens, the next one closes.
  std::map<std::string, Spaces> spaces{};
  // How words are written within a sentence, by their lower case; only those that differ.
  std::map<std::string, std::string> words{};
  SentenceStart sentences = SentenceStart::kKept;

  bool operator==(const TextStyle&) const = default;
};

// Tokens in lower case, with the capitals of the style.
QKV_API std::vector<std::string> with_capitals(std::vector<std::string> words,
                                               const TextStyle& style);
// The same of a text, whose white space stays.
QKV_API std::string with_capitals(std::string_view text, const TextStyle& style);

// Learns a style from text. Throws Error for what is not UTF-8.
class QKV_API TextStyleBuilder {
 public:
  // What tokens of this kind need: spaces if they are words, capitals if they are in lower case.
  TextStyleBuilder(Tokenization tokenization, LetterCase letters)
      : tokenization_(tokenization), letters_(letters) {}

  void add(std::string_view text);
  // The texts that another builder of the same kind has seen.
  void add(const TextStyleBuilder& other);
  // What most texts did: for each mark next to a word, and for each word within a sentence
  // (as truecasing in Moses, Koehn et al. 2007).
  TextStyle build() const;

 private:
  struct SpaceCounts {
    Index before[2] = {0, 0};  // without and with a space
    Index after[2] = {0, 0};
  };

  void count_spaces(std::span<const std::string_view> tokens);
  void count_words(std::span<const std::string_view> tokens);

  Tokenization tokenization_;
  LetterCase letters_;
  std::map<std::string, SpaceCounts> marks_{};
  std::unordered_map<std::string, std::map<std::string, Index>> forms_{};  // by lower case
  Index starts_[2] = {0, 0};  // sentences that begin with a small letter, and with a capital
};

}  // namespace qkv::app

#endif  // QKV_APP_TEXT_STYLE_H_
