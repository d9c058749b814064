// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "text/characters.h"

namespace qkv::app {
namespace {

bool is_scalar_value(char32_t c) { return c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF); }

}  // namespace

// The Unicode Standard, section 3.9, table 3-6 (bits) and D92 (shortest form).
std::optional<char32_t> next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (at >= text.size()) return std::nullopt;
  const unsigned char lead = byte(at);
  if (lead < 0x80) return static_cast<char32_t>(byte(at++));
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC0 || lead >= 0xF8 || length > text.size() - at) return std::nullopt;
  char32_t c = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return std::nullopt;
    c = c << 6 | (byte(at + i) & 0x3FU);
  }
  constexpr char32_t kShortest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kShortest[length] || !is_scalar_value(c)) return std::nullopt;
  at += length;
  return c;
}

std::optional<std::u32string> from_utf8(std::string_view text) {
  std::u32string code_points;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = next_code_point(text, at);
    if (!c) return std::nullopt;
    code_points.push_back(*c);
  }
  return code_points;
}

void append_utf8(std::string& text, char32_t c) {
  if (!is_scalar_value(c)) c = kReplacement;
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto put_rest = [&](int bytes) {
    for (int i = bytes - 1; i >= 0; --i) put(0x80 | (c >> (6 * i) & 0x3F));
  };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put_rest(1);
  if (c < 0x10000) return put(0xE0 | c >> 12), put_rest(2);
  put(0xF0 | c >> 18), put_rest(3);
}

std::string to_utf8(std::u32string_view code_points) {
  std::string text;
  for (const char32_t c : code_points) append_utf8(text, c);
  return text;
}

std::string quoted(std::string_view text, std::size_t limit) {
  std::string result = "\"";
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    if (count == limit) {
      result += "...";
      break;
    }
    const auto c = next_code_point(text, at);
    if (c && !is_control(*c) && !is_unseen(*c)) {
      append_utf8(result, *c);
    } else if (c) {
      const auto code = static_cast<unsigned>(*c);
      result += code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
    }
  }
  return result + '"';
}

}  // namespace qkv::app
