// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/tokenizer.h>

#include "text/text.h"
#include "text/word_spaces.h"

namespace qkv::app {
namespace {

// The operations of a Tokenizer for each kind of unit.
struct KindOf {
  Tokenization operator()(const Characters&) const { return Tokenization::kCharacter; }
  Tokenization operator()(const Words&) const { return Tokenization::kWord; }
  Tokenization operator()(const Subwords&) const { return Tokenization::kSubword; }
};

struct SplitText {
  std::string_view text;

  std::vector<std::string> operator()(const Characters&) const {
    std::vector<std::string> tokens;
    for (const Cluster& cluster : clusters(text)) tokens.emplace_back(cluster.bytes);
    return tokens;
  }
  std::vector<std::string> operator()(const Words&) const { return tokenize(text); }
  std::vector<std::string> operator()(const Subwords& subwords) const {
    return subwords.split(text);
  }
};

// Splits a text without changing its case. The tokens as read are returned if lower case changes
// the number of characters or words, and for subwords, which split differently in another case.
struct SplitAsTyped {
  std::string_view text;          // as typed, but with straight quotation marks
  std::vector<std::string> read;  // the tokens of the text as it is read

  template <class Plain>
  std::vector<std::string> operator()(const Plain& units) {
    std::vector<std::string> typed = SplitText{text}(units);
    return typed.size() == read.size() ? std::move(typed) : std::move(read);
  }
  std::vector<std::string> operator()(const Subwords&) { return std::move(read); }
};

struct JoinTokens {
  std::span<const std::string> tokens;
  const TextStyle& style;

  std::string operator()(const Characters&) const {
    std::string text;
    for (const std::string& token : tokens) text += token;
    return text;
  }
  std::string operator()(const Words&) const { return joined_words(tokens, style); }
  std::string operator()(const Subwords& subwords) const { return subwords.join(tokens); }
};

}  // namespace

Tokenization Tokenizer::tokenization() const { return std::visit(KindOf{}, units_); }

std::vector<std::string> Tokenizer::split(std::string_view text) const {
  const std::string read = as_read(text, letters_);
  return std::visit(SplitText{read}, units_);
}

std::vector<std::string> Tokenizer::split_as_typed(std::string_view text) const {
  const std::string straight = straight_quotes(text);
  return std::visit(SplitAsTyped{straight, split(text)}, units_);
}

std::string Tokenizer::join(std::span<const std::string> tokens, const TextStyle& style) const {
  return std::visit(JoinTokens{tokens, style}, units_);
}

std::string as_read(std::string_view text, LetterCase letters) {
  const std::string straight = straight_quotes(text);
  return letters == LetterCase::kLower ? lower_case(straight) : straight;
}

}  // namespace qkv::app
