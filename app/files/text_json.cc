// SPDX-License-Identifier: Apache-2.0
#include "files/text_json.h"

#include <algorithm>
#include <cstddef>

#include <qkv/app/file_error.h>

#include "files/json_tree.h"

namespace qkv::files {
namespace {

// Appends the texts in a JSON tree to strings.values. Returns false unless the tree is nested lists
// of texts, with the sizes that strings.shape has from `axis` on.
bool take_texts(const Json& tree, int axis, app::Strings& strings) {
  if (axis == strings.shape.rank()) {
    if (tree.is_string()) strings.values.push_back(tree.get<std::string>());
    return tree.is_string();
  }
  return tree.is_array() && static_cast<Index>(tree.size()) == strings.shape[axis] &&
         std::ranges::all_of(tree,
                             [&](const Json& part) { return take_texts(part, axis + 1, strings); });
}

void add_json(const app::Strings& strings, int axis, std::size_t& next, std::string& json) {
  if (axis == strings.shape.rank()) {
    json += Json(strings.values[next++]).dump();
    return;
  }
  json += '[';
  for (Index i = 0; i < strings.shape[axis]; ++i) {
    if (i > 0) json += ',';
    add_json(strings, axis + 1, next, json);
  }
  json += ']';
}

}  // namespace

std::string text_to_json(const app::Strings& strings) {
  std::string json;
  std::size_t next = 0;
  add_json(strings, 0, next, json);
  return json;
}

std::optional<app::Strings> text_from_json(std::string_view json) {
  if (!json.starts_with('[') && !json.starts_with('"')) return std::nullopt;
  constexpr JsonBounds kMost{.what = "text", .depth = kMaxRank, .values = kMostTextValues};
  Json tree;
  try {
    tree = json_tree(json, kMost, [](Index byte, const std::string& detail) {
             throw app::InputError::at_byte("text", byte, detail);
           }).root;
  } catch (const app::InputError&) {
    return std::nullopt;
  }
  app::Strings strings;
  for (const Json* part = &tree; part->is_array(); part = &part->front()) {
    strings.shape.push_back(static_cast<Index>(part->size()));
    if (part->empty()) break;
  }
  if (!take_texts(tree, 0, strings)) return std::nullopt;
  return strings;
}

}  // namespace qkv::files
