// SPDX-License-Identifier: Apache-2.0
#include "page/json_text.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "text/text.h"

namespace qkv::app::page {

std::string json_of(std::string_view text) {
  std::string json = "\"";
  for (const char c : printable(text)) {
    switch (c) {
      case '"':
      case '\\':
        json += '\\';
        json += c;
        break;
      case '<':
      case '>':
      case '&':
        json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        break;
      default:
        json += c;
    }
  }
  return json + "\"";
}

std::string json_of(double number) {
  return std::isfinite(number) ? fmt::format("{}", number) : "null";
}

std::string json_of(const std::vector<std::string>& texts) {
  std::vector<std::string> values;
  values.reserve(texts.size());
  for (const std::string& text : texts) values.push_back(json_of(text));
  return json_list(values);
}

std::string json_of(const std::vector<Index>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

std::string json_list(std::span<const std::string> values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

std::string html_of(std::string_view text) {
  std::string html;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '&':
        html += "&amp;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

}  // namespace qkv::app::page
