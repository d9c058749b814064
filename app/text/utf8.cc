// SPDX-License-Identifier: Apache-2.0
#include <utf8proc.h>

#include <qkv/app/utf8.h>

#include "core/one_line.h"
#include "text/characters.h"

namespace qkv::app {

std::optional<char32_t> next_code_point(std::string_view text, std::size_t& at) {
  return core::next_code_point(text, at);
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

std::string on_one_line(std::string_view text) { return core::on_one_line(text); }

std::string quoted(std::string_view text, std::size_t limit) {
  return '"' + core::on_one_line(text, limit) + '"';
}

}  // namespace qkv::app
