// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_JSON_TREE_H_
#define QKV_FILES_JSON_TREE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <qkv/view.h>

namespace qkv::files {

using Json = nlohmann::json;

// Limits on a document, which bound the memory and time a file can take.
struct JsonBounds {
  const char* what = "";   // what the document is called in messages
  int depth = 0;           // nesting of arrays and objects
  std::size_t values = 0;  // in total: arrays, objects and their elements
  std::size_t bytes = 0;   // of a file
};

// A member of the outermost object.
struct JsonMember {
  std::string name{};
  Index byte = 0;  // offset in the text, after the name
  Json value{};
  std::vector<std::string> names{};  // of an object's own members, in file order
};

struct JsonTree {
  Json root{};                        // if it is an object, an empty one
  std::vector<JsonMember> members{};  // its members, in file order
};

// Throws an error for `detail`, "expected X, got Y", at a byte of the text.
using JsonRefuse = std::function<void(Index byte, const std::string& detail)>;

// Rejects malformed JSON, documents beyond the limits, duplicate members, and objects
// nested deeper than the outermost object's members.
JsonTree json_tree(std::string_view text, const JsonBounds& most, const JsonRefuse& refuse);

// Reads a file; "-" is standard input. Throws InputError with the line.
JsonTree read_json_tree(const std::string& path, const JsonBounds& most);

}  // namespace qkv::files

#endif  // QKV_FILES_JSON_TREE_H_
