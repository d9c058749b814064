// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <qkv/app/text_style.h>
#include <qkv/app/utf8.h>

#include "text/characters.h"
#include "text/text.h"
#include "text/word_spaces.h"

namespace qkv::app {
namespace {

// Whether a token is a straight quotation mark, which opens or closes depending on its place.
bool is_straight_quote(std::string_view token) { return token == "\"" || token == "'"; }

bool has_before(Spaces spaces) { return spaces == Spaces::kBefore || spaces == Spaces::kBoth; }
bool has_after(Spaces spaces) { return spaces == Spaces::kAfter || spaces == Spaces::kBoth; }

Spaces spaces_of(bool before, bool after) {
  if (before) return after ? Spaces::kBoth : Spaces::kBefore;
  return after ? Spaces::kAfter : Spaces::kNone;
}

Spaces english_spaces(std::string_view mark) {
  std::size_t at = 0;
  const char32_t first = next_code_point(mark, at).value_or(U' ');
  if (opens(first)) return Spaces::kBefore;
  return closes(first) ? Spaces::kAfter : Spaces::kBoth;
}

class Joiner {
 public:
  Joiner(std::span<const std::string> tokens, const TextStyle& style)
      : tokens_(tokens), style_(style) {}

  std::string join() {
    for (std::size_t n = 0; n < tokens_.size(); ++n) {
      const Spaces spaces = spaces_around(n);
      if (n > 0 && after_ && has_before(spaces)) text_ += ' ';
      text_ += tokens_[n];
      after_ = has_after(spaces);
    }
    return std::move(text_);
  }

 private:
  Spaces spaces_around(std::size_t n) {
    const std::string& token = tokens_[n];
    if (!is_punctuation_token(token)) return Spaces::kBoth;
    if (is_straight_quote(token)) return quote_spaces(n);
    const auto found = style_.spaces.find(token);
    return found == style_.spaces.end() ? english_spaces(token) : found->second;
  }

  // The spaces around a straight quotation mark. If none is open, a mark opens if another one
  // follows or it is the first token; else it is an apostrophe, as in "two weeks' time".
  Spaces quote_spaces(std::size_t n) {
    bool& is_open = tokens_[n] == "'" ? single_is_open_ : double_is_open_;
    const auto later = tokens_.subspan(n + 1);
    const bool is_closed = std::ranges::find(later, tokens_[n]) != later.end();
    is_open = !is_open && (is_closed || n == 0);
    return is_open ? Spaces::kBefore : Spaces::kAfter;
  }

  std::span<const std::string> tokens_;
  const TextStyle& style_;
  std::string text_{};
  bool after_ = false;  // whether the last token has a space after it
  bool single_is_open_ = false;
  bool double_is_open_ = false;
};

// Tells for each token of a text, in order, whether it is a word that begins a sentence.
class SentenceStarts {
 public:
  enum class Token { kMark, kStart, kWithin };

  Token next(std::string_view token) {
    if (!is_punctuation_token(token)) {
      return std::exchange(at_start_, false) ? Token::kStart : Token::kWithin;
    }
    // The token "..." may be a pause, so unlike "…" it ends no sentence. Quotation marks and
    // brackets change nothing.
    if (token == "." || token == "!" || token == "?" || token == "…") at_start_ = true;
    if (token == "," || token == ";") at_start_ = false;
    return Token::kMark;
  }

 private:
  bool at_start_ = true;
};

}  // namespace

std::string joined_words(std::span<const std::string> words, const TextStyle& style) {
  return Joiner(words, style).join();
}

std::vector<std::string> with_capitals(std::vector<std::string> words, const TextStyle& style) {
  SentenceStarts starts;
  for (std::string& word : words) {
    const auto found = style.words.find(word);
    if (found != style.words.end()) word = found->second;
    const bool is_start = starts.next(word) == SentenceStarts::Token::kStart;
    if (is_start && style.sentences == SentenceStart::kCapital) word = capitalized(word);
  }
  return words;
}

std::string with_capitals(std::string_view text, const TextStyle& style) {
  const std::vector<std::string_view> views = token_views(text);
  const auto words = with_capitals(std::vector<std::string>(views.begin(), views.end()), style);
  std::string result;
  const char* end = text.data();  // the end of the last word
  for (std::size_t n = 0; n < views.size(); ++n) {
    result.append(end, views[n].data());
    result += words[n];
    end = views[n].data() + views[n].size();
  }
  result.append(end, text.data() + text.size());
  return result;
}

void TextStyleBuilder::add(std::string_view text) {
  const std::string straight = straight_quotes(text);
  const std::vector<std::string_view> tokens = token_views(straight);
  if (tokenization_ == Tokenization::kWord) count_spaces(tokens);
  if (letters_ == LetterCase::kLower) count_words(tokens);
}

void TextStyleBuilder::add(const TextStyleBuilder& other) {
  for (const auto& [mark, counts] : other.marks_) {
    SpaceCounts& sum = marks_[mark];
    for (const int n : {0, 1}) {
      sum.before[n] += counts.before[n];
      sum.after[n] += counts.after[n];
    }
  }
  for (const auto& [lower, forms] : other.forms_) {
    for (const auto& [form, count] : forms) forms_[lower][form] += count;
  }
  for (const int n : {0, 1}) starts_[n] += other.starts_[n];
}

void TextStyleBuilder::count_spaces(std::span<const std::string_view> tokens) {
  for (std::size_t n = 1; n < tokens.size(); ++n) {
    const std::string_view left = tokens[n - 1];
    const std::string_view right = tokens[n];
    const bool left_is_mark = is_punctuation_token(left);
    if (left_is_mark == is_punctuation_token(right)) continue;
    const bool has_space = left.data() + left.size() != right.data();
    SpaceCounts& counts = marks_[std::string(left_is_mark ? left : right)];
    ++(left_is_mark ? counts.after : counts.before)[has_space ? 1 : 0];
  }
}

void TextStyleBuilder::count_words(std::span<const std::string_view> tokens) {
  SentenceStarts starts;
  for (const std::string_view token : tokens) {
    const SentenceStarts::Token kind = starts.next(token);
    if (kind == SentenceStarts::Token::kWithin) ++forms_[lower_case(token)][std::string(token)];
    if (kind != SentenceStarts::Token::kStart) continue;
    const bool is_capital = capitalized(token) == token;
    // A number, or a word in a script without capitals, counts as neither.
    if (is_capital != (lower_case(token) == token)) ++starts_[is_capital ? 1 : 0];
  }
}

TextStyle TextStyleBuilder::build() const {
  TextStyle style;
  for (const auto& [mark, counts] : marks_) {
    if (is_straight_quote(mark)) continue;
    const Spaces usual = english_spaces(mark);
    const auto most = [](const Index(&n)[2], bool if_equal) {
      return n[0] == n[1] ? if_equal : n[1] > n[0];
    };
    const Spaces learned =
        spaces_of(most(counts.before, has_before(usual)), most(counts.after, has_after(usual)));
    if (learned != usual) style.spaces.emplace(mark, learned);
  }
  for (const auto& [lower, forms] : forms_) {
    // Among equally frequent forms the last by bytes is taken, the one in small letters.
    const auto& most =
        *std::max_element(forms.rbegin(), forms.rend(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most.first != lower) style.words.emplace(lower, most.first);
  }
  if (starts_[1] > starts_[0]) style.sentences = SentenceStart::kCapital;
  return style;
}

}  // namespace qkv::app
