// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <qkv/app/picture.h>

#include "picture/child.h"
#include "picture/svg_writer.h"
#include "text/text.h"

namespace qkv::app {
namespace {

// Generic families of CSS Fonts 4, section 2.1.3, and fontconfig's own, without hyphens.
constexpr std::string_view kGeneric[] = {"serif",   "sansserif", "sans",     "monospace", "mono",
                                         "cursive", "fantasy",   "systemui", "emoji",     "math"};

// The form in which fontconfig compares names, without blanks and case
// (FcStrCmpIgnoreBlanksAndCase).
std::string compared(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != ' ') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

// A family as written in fontconfig's patterns, where the characters escaped here are syntax.
std::string escaped_family(std::string_view family) {
  std::string text;
  for (const char c : family) {
    if (c == '-' || c == ':' || c == ',' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

}  // namespace

std::string font_in_place_of(const std::string& font, const std::atomic<bool>* stop) {
  std::string asked = compared(font);
  std::erase(asked, '-');
  if (std::ranges::find(kGeneric, asked) != std::end(kGeneric)) return {};
  // The families that the SVG document lists, in order.
  const std::string families =
      fmt::format("{},{},monospace", escaped_family(font), picture::kUsualFont);
  const picture::ChildResult result =
      picture::run_child("fc-match", {"--format=%{family}", families}, {}, stop);
  if (!result.found || result.status != 0 || result.output.empty()) return {};
  // One font has several names for styles and languages: "DejaVu Sans,DejaVu Sans Light".
  std::string_view names = result.output;
  const std::string first(names.substr(0, names.find(',')));
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    if (compared(name) == compared(font)) return {};
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
  return printable(first);
}

}  // namespace qkv::app
