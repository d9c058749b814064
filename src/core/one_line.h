// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ONE_LINE_H_
#define QKV_CORE_ONE_LINE_H_

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

// The form in which messages and reports write names that users gave: files, environment variables,
// arrays.
namespace qkv::core {

// Returns the code point that starts at text[at] and advances `at` past it. For invalid UTF-8
// (truncated, overlong, a surrogate, past U+10FFFF) returns nothing and leaves `at` unchanged.
inline std::optional<char32_t> next_code_point(std::string_view text, std::size_t& at) {
  if (at >= text.size()) return std::nullopt;
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[at + n]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return ++at, char32_t{first};
  if (first < 0xC2 || first > 0xF4) return std::nullopt;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() - at < length) return std::nullopt;
  char32_t c = first & (0x7FU >> length);
  for (std::size_t n = 1; n < length; ++n) {
    if ((byte(n) & 0xC0U) != 0x80) return std::nullopt;
    c = c << 6 | (byte(n) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
  if (c < kLeast[length] || c > 0x10FFFF || is_surrogate) return std::nullopt;
  at += length;
  return c;
}

// True for C0, delete and C1, the characters that a terminal acts on.
constexpr bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7F && c <= 0x9F); }

// True for marks that end a line or change the direction of the following text, and for some other
// invisible ones. The two joiners, U+200C and U+200D, belong to words and to emoji, and are not
// included.
constexpr bool is_unseen(char32_t c) {
  return c == 0xAD || c == 0x61C || c == 0x200B || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || c == 0x2060 || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

// Returns the text on one line that is safe on a terminal: control characters, bytes that are
// not UTF-8 and invisible marks become \xNN, or \uNNNN from U+0100 on, and "..." replaces the text
// after `limit` code points. Without a limit, a second call leaves the line unchanged.
inline std::string on_one_line(std::string_view text,
                               std::size_t limit = std::numeric_limits<std::size_t>::max()) {
  std::string line;
  const auto add_number = [&line](char32_t number, int digits) {
    for (int place = 4 * (digits - 1); place >= 0; place -= 4) {
      line += "0123456789abcdef"[number >> place & 0xFU];
    }
  };
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    if (count == limit) return line + "...";
    const std::size_t begin = at;
    const std::optional<char32_t> c = next_code_point(text, at);
    if (c && !is_control(*c) && !is_unseen(*c)) {
      line += text.substr(begin, at - begin);
      continue;
    }
    const char32_t number = c ? *c : static_cast<unsigned char>(text[at++]);
    line += number < 0x100 ? "\\x" : "\\u";
    add_number(number, number < 0x100 ? 2 : 4);
  }
  return line;
}

}  // namespace qkv::core

#endif  // QKV_CORE_ONE_LINE_H_
