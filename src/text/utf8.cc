// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <utf8proc.h>

#include <qkv/app/utf8.h>

#include "text/characters.h"

namespace qkv::app {

std::optional<char32_t> next_code_point(std::string_view text, std::size_t& at) {
  if (at >= text.size()) return std::nullopt;
  // Most of most texts, and a call of the library costs ten times as much.
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return ++at, char32_t{first};
  const std::string_view rest = text.substr(at);
  utf8proc_int32_t c = -1;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(rest.data()),
                                       static_cast<utf8proc_ssize_t>(rest.size()), &c);
  if (length <= 0) return std::nullopt;
  at += static_cast<std::size_t>(length);
  return static_cast<char32_t>(c);
}

std::size_t utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (next_code_point(text, at)) {
  }
  return at;
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
  auto code = static_cast<utf8proc_int32_t>(c);
  if (!utf8proc_codepoint_valid(code)) code = kReplacement;
  utf8proc_uint8_t bytes[4];
  text.append(bytes, bytes + utf8proc_encode_char(code, bytes));
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
