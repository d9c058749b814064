// SPDX-License-Identifier: Apache-2.0
#include "text/characters.h"

#include <algorithm>

#include <fmt/format.h>
#include <utf8proc.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "text/text.h"

namespace qkv::app {
namespace {

constexpr char32_t kVariation16 = 0xFE0F;  // "draw the preceding character as an emoji"

utf8proc_int32_t signed_code(char32_t c) { return static_cast<utf8proc_int32_t>(c); }

const utf8proc_property_t& properties(char32_t c) { return *utf8proc_get_property(signed_code(c)); }

char32_t shown(char32_t c) {
  if (c == U'\n' || c == 0x2028 || c == 0x2029) return U'↵';
  if (c == U'\t') return U'⇥';
  // The last two code points of each plane are noncharacters.
  return is_control(c) || (c & 0xFFFE) == 0xFFFE ? kReplacement : c;
}

// The columns of a character on a terminal, by Unicode Standard Annex 11, and by Technical Standard
// 51 for emoji.
int width_of(std::u32string_view cluster) {
  int width = 0;
  for (const char32_t c : cluster) width = std::max(width, utf8proc_charwidth(signed_code(c)));
  if (cluster.size() < 2) return width;
  const char32_t first = cluster[0];
  const auto kind = properties(first).boundclass;
  const bool flag = kind == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR &&
                    properties(cluster[1]).boundclass == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR;
  const bool keycap = first == U'#' || first == U'*' || (first >= U'0' && first <= U'9');
  const bool emoji = (keycap || kind == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC) &&
                     cluster.find(kVariation16) != std::u32string_view::npos;
  return flag || emoji ? 2 : width;
}

}  // namespace

char32_t lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(signed_code(c))); }

char32_t title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(signed_code(c))); }

bool is_space(char32_t c) {
  const auto category = properties(c).category;
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP || is_control(c) || c == 0xFEFF;
}

bool is_ignorable(char32_t c) { return properties(c).ignorable != 0; }

bool is_punctuation(char32_t c) {
  const auto category = properties(c).category;
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO;
}

bool opens(char32_t c) {
  constexpr std::u32string_view kBeforeWords = U"¿¡#$£¥€@";
  const auto category = properties(c).category;
  return category == UTF8PROC_CATEGORY_PS || category == UTF8PROC_CATEGORY_PI ||
         kBeforeWords.find(c) != std::u32string_view::npos;
}

bool closes(char32_t c) {
  constexpr std::u32string_view kAfterWords = U".,;:!?…%‰°、。，！？：；";
  const auto category = properties(c).category;
  return category == UTF8PROC_CATEGORY_PE || category == UTF8PROC_CATEGORY_PF ||
         kAfterWords.find(c) != std::u32string_view::npos;
}

char straight_quote(char32_t c) {
  constexpr std::u32string_view kSingle = U"‘’‚‛′´ʼ";
  constexpr std::u32string_view kDouble = U"“”„‟″";
  if (kSingle.find(c) != std::u32string_view::npos) return '\'';
  return kDouble.find(c) != std::u32string_view::npos ? '"' : '\0';
}

std::u32string decoded(std::string_view function, std::string_view text) {
  auto code_points = from_utf8(text);
  if (!code_points) {
    throw Error(function, "text", fmt::format("must be UTF-8, byte {} is not", utf8_prefix(text)));
  }
  return *std::move(code_points);
}

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = next_code_point(text, at);
    if (!c) ++at;
    const bool is_break = c && (*c == 0x2028 || *c == 0x2029);  // unseen, but shown as a line break
    if (!c || is_break || !is_unseen(*c)) append_utf8(result, c ? shown(*c) : kReplacement);
  }
  return result;
}

// Splits by the extended grapheme clusters of Unicode Standard Annex 29.
std::vector<Cluster> clusters(std::string_view text) {
  const std::u32string all = decoded("clusters", text);
  std::vector<Cluster> result;
  std::size_t byte = 0;   // offset of the current cluster in bytes
  std::size_t start = 0;  // offset of the current cluster in code points
  std::size_t end_byte = 0;
  utf8proc_int32_t state = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    next_code_point(text, end_byte);
    // The call also advances the state, which must see every pair of code points in order.
    const bool last =
        i + 1 == all.size() ||
        utf8proc_grapheme_break_stateful(signed_code(all[i]), signed_code(all[i + 1]), &state);
    if (!last) continue;
    result.push_back({text.substr(byte, end_byte - byte),
                      width_of(std::u32string_view(all).substr(start, i + 1 - start))});
    byte = end_byte;
    start = i + 1;
  }
  return result;
}

int display_width(std::string_view text) {
  decoded("display_width", text);
  int width = 0;
  const std::string safe = printable(text);
  for (const Cluster& cluster : clusters(safe)) width += cluster.width;
  return width;
}

std::string shortened(std::string_view text, int width) {
  decoded("shortened", text);
  std::string safe = printable(text);
  if (display_width(safe) <= width) return safe;
  std::string result;
  int used = 1;  // the width of the ellipsis
  for (const Cluster& cluster : clusters(safe)) {
    used += cluster.width;
    if (used > width) break;
    result += cluster.bytes;
  }
  return width > 0 ? result + "…" : "";
}

bool has_right_to_left(std::string_view text) {
  const std::u32string all = decoded("has_right_to_left", text);
  return std::any_of(all.begin(), all.end(), [](char32_t c) {
    const auto direction = properties(c).bidi_class;
    return direction == UTF8PROC_BIDI_CLASS_R || direction == UTF8PROC_BIDI_CLASS_AL;
  });
}

}  // namespace qkv::app
