// SPDX-License-Identifier: Apache-2.0
#include "picture/label_text.h"

#include <algorithm>

#include <qkv/app/utf8.h>

namespace qkv::app::picture {

// The marks are FIRST STRONG ISOLATE and POP DIRECTIONAL ISOLATE of Unicode Standard Annex 9.
std::string isolated(std::string_view text) {
  return has_right_to_left(text) ? "\u2068" + std::string(text) + "\u2069" : std::string(text);
}

std::string padded(std::string_view text, int width, Side side) {
  const int missing = std::max(0, width - display_width(text));
  const std::string blanks(static_cast<std::size_t>(missing), ' ');
  return side == Side::kRight ? blanks + isolated(text) : isolated(text) + blanks;
}

std::string simple_emoji(std::string_view text) {
  constexpr char32_t kFlagA = 0x1F1E6;
  constexpr char32_t kFlagZ = 0x1F1FF;
  std::string result;
  for (const Cluster& cluster : clusters(text)) {
    std::size_t at = 0;
    const char32_t first = next_code_point(cluster.bytes, at).value_or(0);
    const auto rest = cluster.bytes.substr(at);
    const bool joined = rest.find("\u200D") != std::string_view::npos;
    const bool coloured = rest.find("\xF0\x9F\x8F") == 0;  // U+1F3FB to U+1F3FF, skin tones
    const bool emoji = rest.find("\uFE0F") == 0;
    const bool flag = first >= kFlagA && first <= kFlagZ;
    const bool simpler = cluster.width == 2 && !flag && (joined || coloured || emoji);
    result += simpler ? cluster.bytes.substr(0, at) : cluster.bytes;
  }
  return result;
}

std::string in_ascii(std::string_view text) {
  std::string result;
  for (const Cluster& cluster : clusters(text)) {
    const bool ascii = cluster.bytes.size() == 1;
    result += ascii ? std::string(cluster.bytes)
                    : std::string(static_cast<std::size_t>(cluster.width), '?');
  }
  return result;
}

std::vector<std::string> wrapped(std::string_view text, double limit,
                                 double (*measure)(const Cluster&)) {
  std::vector<std::string> lines;
  const std::vector<Cluster> all = clusters(text);
  std::size_t start = 0;
  while (start < all.size()) {
    double used = 0;
    std::size_t end = start;    // the end of the text that fits
    std::size_t blank = start;  // the last blank after a word in the text that fits
    for (; end < all.size(); ++end) {
      used += measure(all[end]);
      if (all[end].bytes == " " && end > start) blank = end;
      if (used > limit && end > start) break;
    }
    const std::size_t cut = end == all.size() || blank == start ? end : blank;
    std::string line;
    for (std::size_t i = start; i < cut; ++i) line += all[i].bytes;
    lines.push_back(line);
    start = cut;
    while (start < all.size() && all[start].bytes == " ") ++start;
  }
  return lines;
}

}  // namespace qkv::app::picture
