// SPDX-License-Identifier: Apache-2.0
#include <clocale>
#include <cwchar>
#include <cwctype>

#include <fmt/format.h>

#include <qkv/app/text.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

namespace qkv::app {
namespace {

// The C library's tables of characters, whatever locale the process has. Where there is no
// "C.UTF-8" only ASCII has cases and punctuation, and every character is one column wide.
class CharacterTables {
 public:
  CharacterTables() : old_(uselocale(utf8())) {}
  ~CharacterTables() { uselocale(old_); }
  CharacterTables(const CharacterTables&) = delete;
  CharacterTables& operator=(const CharacterTables&) = delete;

  static char32_t lower(char32_t c) {
    return static_cast<char32_t>(std::towlower(static_cast<std::wint_t>(c)));
  }
  static int width(char32_t c) {
    const int columns = ::wcwidth(static_cast<wchar_t>(c));
    return columns < 0 ? 1 : columns;
  }
  // Control characters separate too: none of them may reach a terminal inside a word. The C library
  // calls no-break spaces punctuation.
  static bool is_space(char32_t c) {
    const auto wide = static_cast<std::wint_t>(c);
    return std::iswspace(wide) != 0 || std::iswcntrl(wide) != 0 || c == 0xA0 || c == 0x2007 ||
           c == 0x202F || c == 0xFEFF;
  }
  // Marks that join the letter before them (width 0) are not.
  static bool is_punctuation(char32_t c) {
    return std::iswpunct(static_cast<std::wint_t>(c)) != 0 && width(c) > 0;
  }

 private:
  static locale_t utf8() {
    static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return locale;  // null leaves the current one in place
  }
  locale_t old_;
};

std::u32string decoded(std::string_view function, std::string_view text) {
  auto code_points = from_utf8(text);
  if (!code_points) {
    std::size_t at = 0;
    while (next_code_point(text, at)) {
    }
    throw Error(function, "text", fmt::format("must be UTF-8, byte {} is not", at));
  }
  return *std::move(code_points);
}

// The length of the punctuation token that starts a non-empty piece; 0 for a letter. Combining
// marks stay with what they mark.
std::size_t punctuation_length(std::u32string_view piece) {
  const char32_t first = piece[0];
  if (!CharacterTables::is_punctuation(first)) return 0;
  const bool runs = first == U'.' || first == U'-';
  std::size_t length = 1;
  while (length < piece.size() &&
         ((runs && piece[length] == first) || CharacterTables::width(piece[length]) == 0)) {
    ++length;
  }
  return length;
}

// One piece between white space, cut into punctuation, word, punctuation.
void tokenize_piece(std::u32string_view piece, std::vector<std::string>& tokens) {
  const auto take = [&](std::size_t length) {
    tokens.push_back(to_utf8(piece.substr(0, length)));
    piece.remove_prefix(length);
  };
  while (!piece.empty()) {
    const std::size_t length = punctuation_length(piece);
    if (length == 0) break;
    take(length);
  }
  std::size_t word = piece.size();
  for (std::size_t end = piece.size(); end > 0; --end) {
    const char32_t c = piece[end - 1];
    if (CharacterTables::is_punctuation(c)) {
      word = end - 1;
    } else if (CharacterTables::width(c) > 0) {
      break;
    }
  }
  if (word > 0) take(word);
  while (!piece.empty()) take(punctuation_length(piece));
}

}  // namespace

std::vector<std::string> tokenize(std::string_view text) {
  const CharacterTables tables;
  const std::u32string all = decoded("tokenize", text);
  std::vector<std::string> tokens;
  std::size_t start = 0;
  for (std::size_t at = 0; at <= all.size(); ++at) {
    if (at < all.size() && !CharacterTables::is_space(all[at])) continue;
    tokenize_piece(std::u32string_view(all).substr(start, at - start), tokens);
    start = at + 1;
  }
  return tokens;
}

std::string lower_case(std::string_view text) {
  const CharacterTables tables;
  std::u32string all = decoded("lower_case", text);
  for (char32_t& c : all) c = CharacterTables::lower(c);
  return to_utf8(all);
}

int display_width(std::string_view text) {
  const CharacterTables tables;
  int width = 0;
  for (const char32_t c : decoded("display_width", text)) width += CharacterTables::width(c);
  return width;
}

std::string shortened(std::string_view text, int width) {
  if (display_width(text) <= width) return std::string(text);
  const CharacterTables tables;
  std::string result;
  int used = 1;  // the ellipsis
  for (const char32_t c : decoded("shortened", text)) {
    used += CharacterTables::width(c);
    if (used > width) break;
    append_utf8(result, c);
  }
  return width > 0 ? result + "…" : "";
}

}  // namespace qkv::app
