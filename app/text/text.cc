// SPDX-License-Identifier: Apache-2.0
#include "text/text.h"

#include <algorithm>
#include <span>

#include <qkv/app/utf8.h>

#include "text/characters.h"

namespace qkv::app {
namespace {

// The code point that classifies a character: the first, since marks belong to the letter that they
// modify.
char32_t first_of(const Cluster& cluster) {
  std::size_t at = 0;
  return next_code_point(cluster.bytes, at).value_or(U' ');
}

bool stands_alone(const Cluster& cluster) { return is_punctuation(first_of(cluster)); }

// The length in characters of the punctuation token at the start of a non-empty piece, or 0.
std::size_t punctuation_length(std::span<const Cluster> piece) {
  if (!stands_alone(piece[0])) return 0;
  const char32_t first = first_of(piece[0]);
  const bool runs = first == U'.' || first == U'-';
  std::size_t length = 1;
  while (runs && length < piece.size() && first_of(piece[length]) == first) ++length;
  return length;
}

// Splits a piece without white space into leading punctuation, a word, and trailing punctuation.
void tokenize_piece(std::span<const Cluster> piece, std::vector<std::string_view>& tokens) {
  const auto take = [&](std::size_t length) {
    const Cluster& last = piece[length - 1];
    const char* const begin = piece[0].bytes.data();
    tokens.emplace_back(begin, last.bytes.data() + last.bytes.size());
    piece = piece.subspan(length);
  };
  while (!piece.empty()) {
    const std::size_t length = punctuation_length(piece);
    if (length == 0) break;
    take(length);
  }
  std::size_t word = piece.size();
  while (word > 0 && stands_alone(piece[word - 1])) --word;
  if (word > 0) take(word);
  while (!piece.empty()) take(punctuation_length(piece));
}

}  // namespace

bool is_blank(std::string_view text) { return is_blank(decoded("is_blank", text)); }
bool is_blank(std::u32string_view characters) {
  return std::ranges::all_of(characters, [](char32_t c) { return is_space(c) || is_ignorable(c); });
}

std::vector<std::string> tokenize(std::string_view text) {
  const std::vector<std::string_view> views = token_views(text);
  return {views.begin(), views.end()};
}

std::vector<std::string_view> token_views(std::string_view text) {
  if (is_blank(decoded("tokenize", text))) return {};
  const std::vector<Cluster> all = clusters(text);
  std::vector<std::string_view> tokens;
  std::size_t start = 0;
  for (std::size_t at = 0; at <= all.size(); ++at) {
    if (at < all.size() && !is_space(first_of(all[at]))) continue;
    tokenize_piece(std::span(all).subspan(start, at - start), tokens);
    start = at + 1;
  }
  return tokens;
}

bool is_punctuation_token(std::string_view token) {
  const std::vector<Cluster> all = clusters(token);
  return !all.empty() && std::ranges::all_of(all, stands_alone);
}

std::string straight_quotes(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const auto c = next_code_point(text, at);
    if (!c) ++at;
    const char quote = c ? straight_quote(*c) : '\0';
    if (quote == '\0') {
      result += text.substr(begin, at - begin);
    } else {
      result += quote;
    }
  }
  return result;
}

std::string capitalized(std::string_view text) {
  std::u32string all = decoded("capitalized", text);
  if (!all.empty()) all[0] = title(all[0]);
  return to_utf8(all);
}

std::string lower_case(std::string_view text) {
  std::u32string all = decoded("lower_case", text);
  for (char32_t& c : all) c = lower(c);
  return to_utf8(all);
}

}  // namespace qkv::app
