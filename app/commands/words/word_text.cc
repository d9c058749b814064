// SPDX-License-Identifier: Apache-2.0
#include "commands/words/word_text.h"

#include <functional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/utf8.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "files/text_file.h"
#include "text/text.h"

namespace {

using qkv::Index;

// The limit on words, since every word attends to every other. A long novel has half as many.
constexpr std::size_t kMostWords = 1'000'000;
constexpr std::size_t kMostTextBytes = std::size_t{16} << 20;
// The limit on a word in code points. The longest words in dictionaries have some 200.
constexpr std::size_t kLongestWord = 1000;
// The limit on bytes without ASCII white space, which are tokenized at once: this temporarily takes
// up to 40 times their size.
constexpr std::size_t kLongestPiece = std::size_t{1} << 18;
constexpr std::string_view kBlanks = " \t\r\n";

// Splits a text that arrives in blocks into the tokens that tokenize() makes of the whole, and
// rejects texts that are too large.
class Tokens {
 public:
  // Throws the error of a text that is invalid at this byte.
  using Refuse = std::function<void(Index byte, const std::string& detail)>;

  // Reserves room for the largest number of words. This takes only address space, since untouched
  // pages cost no memory, while a growing vector would be in memory twice.
  explicit Tokens(Refuse refuse) : refuse_(std::move(refuse)) { tokens_.reserve(kMostWords); }

  void take(std::string_view block) {
    rest_ += block;
    if (begin_ + rest_.size() > kMostTextBytes) {
      fail(kMostTextBytes - begin_,
           fmt::format("expected at most {} bytes of text, got more", kMostTextBytes));
    }
    valid_ += qkv::app::utf8_prefix(std::string_view(rest_).substr(valid_));
    if (rest_.size() - valid_ >= 4) fail(valid_, "expected UTF-8 text");
    cut(last_gap());
    if (valid_ < kLongestPiece) return;
    const std::size_t begin = begin_;
    cut(valid_);  // reports a long word, the most likely cause
    begin_ = begin;
    fail(0, fmt::format("expected a space or a newline in {} bytes, got none", kLongestPiece));
  }

  std::vector<std::string> finish() {
    if (valid_ < rest_.size()) fail(valid_, "expected UTF-8 text");
    cut(valid_);
    return std::move(tokens_);
  }

 private:
  void fail(std::size_t at, const std::string& detail) const {
    refuse_(static_cast<Index>(begin_ + at), detail);
  }

  // The offset of the last blank before which the text can be split without changing its tokens, or
  // 0 if there is none. It cannot be split where the blank forms one cluster with the character
  // before it, as a newline does after a carriage return.
  std::size_t last_gap() const {
    const std::string_view text = std::string_view(rest_).substr(0, valid_);
    for (std::size_t at = text.find_last_of(kBlanks); at != text.npos && at > 0;
         at = text.find_last_of(kBlanks, at - 1)) {
      std::size_t before = at - 1;
      while ((static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
      if (qkv::app::clusters(text.substr(before, at + 1 - before)).size() == 2) return at;
    }
    return 0;
  }

  // Tokenizes the first `end` bytes of rest_ and removes them.
  void cut(std::size_t end) {
    std::size_t at = 0;
    for (std::string& token : qkv::app::tokenize(std::string_view(rest_).substr(0, end))) {
      at = rest_.find(token, at);
      if (tokens_.size() == kMostWords) {
        fail(at, fmt::format("expected at most {} words, got more", kMostWords));
      }
      if (token.size() > kLongestWord && qkv::app::from_utf8(token)->size() > kLongestWord) {
        fail(at, fmt::format("expected a word of at most {} letters, got {}...", kLongestWord,
                             qkv::app::quoted(token, 10)));
      }
      at += token.size();
      tokens_.push_back(std::move(token));
    }
    rest_.erase(0, end);
    begin_ += end;
    valid_ -= end;
  }

  Refuse refuse_;
  std::vector<std::string> tokens_;
  std::string rest_;       // the text so far that is not split yet
  std::size_t valid_ = 0;  // bytes of rest_ that are known to be valid UTF-8
  std::size_t begin_ = 0;  // offset of rest_ in the text
};

std::vector<std::string> from_stdin() {
  Tokens tokens([](Index byte, const std::string& detail) {
    throw qkv::app::InputError::at_byte("<stdin>", byte, detail);
  });
  qkv::app::for_each_block(
      "-", [&](std::string_view block) { tokens.take(block); }, &stop_flag());
  std::vector<std::string> words = tokens.finish();
  if (words.empty()) throw qkv::app::InputError("<stdin>", "expected words, got none");
  return words;
}

std::vector<std::string> from_arguments(const std::vector<std::string>& text) {
  Tokens tokens([](Index byte, const std::string& detail) {
    throw UsageError(fmt::format("TEXT: byte {}: {}", byte, detail));
  });
  tokens.take(fmt::format("{}", fmt::join(text, " ")));
  std::vector<std::string> words = tokens.finish();
  if (words.empty()) throw UsageError("TEXT has no words");
  return words;
}

}  // namespace

std::vector<std::string> read_tokens(const std::vector<std::string>& text) {
  return text == std::vector<std::string>{"-"} ? from_stdin() : from_arguments(text);
}
