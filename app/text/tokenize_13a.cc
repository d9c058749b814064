// SPDX-License-Identifier: Apache-2.0
#include "text/tokenize_13a.h"

#include <qkv/app/utf8.h>

#include "text/characters.h"

namespace qkv::app {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }

// Whether a character is ASCII punctuation that is a token wherever it occurs. The character ' is
// never split off; - . and , are split off depending on their neighbours.
bool stands_alone(char c) {
  constexpr std::string_view kAlone = "!\"#$%&()*+/:;<=>?@[\\]^_`{|}~";
  return kAlone.find(c) != kAlone.npos;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Each with_..._apart function below is one step of the tokenizer. It passes over the bytes once,
// from left to right, and its matches do not overlap: with_stops_apart_on_the_left() matches "a."
// and ".." in "a...". Bytes of longer UTF-8 sequences are neither digits nor stops, so that the
// bytes can be examined one at a time.

std::string with_punctuation_apart(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (stands_alone(c)) {
      (result += ' ') += c;
      result += ' ';
    } else {
      result += c;
    }
  }
  return result;
}

// Puts spaces around a stop that follows anything but a digit.
std::string with_stops_apart_on_the_left(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    result += text[at];
    if (is_digit(text[at]) || at + 1 == text.size() || !is_stop(text[at + 1])) continue;
    (result += ' ') += text[++at];
    result += ' ';
  }
  return result;
}

// Puts spaces around a stop that precedes anything but a digit.
std::string with_stops_apart_on_the_right(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_apart = is_stop(text[at]) && at + 1 < text.size() && !is_digit(text[at + 1]);
    if (!is_apart) {
      result += text[at];
      continue;
    }
    (result += ' ') += text[at];
    (result += ' ') += text[++at];
  }
  return result;
}

std::string with_hyphens_apart(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    result += text[at];
    if (!is_digit(text[at]) || at + 1 == text.size() || text[at + 1] != '-') continue;
    (result += ' ') += text[++at];
    result += ' ';
  }
  return result;
}

std::vector<std::string> split_at_white_space(std::string_view text) {
  std::vector<std::string> tokens;
  bool is_inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const auto c = next_code_point(text, at);
    if (is_white_space(*c)) {
      is_inside = false;
      continue;
    }
    if (!is_inside) tokens.emplace_back();
    is_inside = true;
    tokens.back() += text.substr(begin, at - begin);
  }
  return tokens;
}

// Decodes a text and removes the white space at its end.
std::u32string trimmed(std::string_view text) {
  std::u32string all = decoded("tokenize_13a", text);
  while (!all.empty() && is_white_space(all.back())) all.pop_back();
  return all;
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::vector<std::string> tokenize_13a(std::string_view text) {
  std::string line = to_utf8(trimmed(text));
  replace_all(line, "<skipped>", "");
  replace_all(line, "-\n", "");
  replace_all(line, "\n", " ");
  // The order matters: "&amp;lt;" becomes "<".
  replace_all(line, "&quot;", "\"");
  replace_all(line, "&amp;", "&");
  replace_all(line, "&lt;", "<");
  replace_all(line, "&gt;", ">");
  line = with_punctuation_apart(" " + line + " ");
  line = with_stops_apart_on_the_left(line);
  line = with_stops_apart_on_the_right(line);
  return split_at_white_space(with_hyphens_apart(line));
}

}  // namespace qkv::app
