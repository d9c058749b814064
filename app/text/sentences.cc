// SPDX-License-Identifier: Apache-2.0
#include "text/sentences.h"

#include <qkv/app/utf8.h>

#include "text/characters.h"
#include "text/text.h"

namespace qkv::app {

std::string folded_text(std::string_view text) {
  std::string folded;
  bool is_apart = false;
  for (const char32_t c : decoded("folded_text", text)) {
    if (is_space(c)) {
      is_apart = !folded.empty();
      continue;
    }
    if (is_apart) folded += ' ';
    is_apart = false;
    append_utf8(folded, c);
  }
  if (is_blank(folded)) return {};
  return straight_quotes(folded);
}

std::size_t Sentences::add(std::string_view source, std::string_view reference) {
  const auto [place, is_new] = places_.try_emplace(folded_text(source), all_.size());
  if (is_new) all_.push_back({std::string(source), {}});
  all_[place->second].references.emplace_back(reference);
  return place->second;
}

std::size_t Sentences::find(std::string_view source) const {
  const auto place = places_.find(folded_text(source));
  return place == places_.end() ? all_.size() : place->second;
}

}  // namespace qkv::app
