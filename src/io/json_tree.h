// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_JSON_TREE_H_
#define QKV_IO_JSON_TREE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <qkv/view.h>

namespace qkv::io {

using Json = nlohmann::json;

// What a document may hold at most: no file takes more memory or time than they allow.
struct JsonBounds {
  const char* what = "";   // it is, as messages say
  int depth = 0;           // of arrays and objects inside one another
  std::size_t values = 0;  // in all: arrays, objects and what stands in them
  std::size_t bytes = 0;   // of a file
};

// A member of the outermost object.
struct JsonMember {
  std::string name{};
  Index byte = 0;  // of the text, behind the name
  Json value{};
  std::vector<std::string> names{};  // of an object's own members, as the text has them
};

struct JsonTree {
  Json root{};                        // of an object nothing but that it is one
  std::vector<JsonMember> members{};  // its members, as the text has them
};

// Throws an error for `detail`, "expected X, got Y", at a byte of the text.
using JsonRefuse = std::function<void(Index byte, const std::string& detail)>;

// Refuses what is not JSON, holds more than it may or names a member twice, and objects but the
// outermost one and its members.
JsonTree json_tree(std::string_view text, const JsonBounds& most, const JsonRefuse& refuse);

// Of a file, "-" being standard input. Throws InputError, with the line.
JsonTree read_json_tree(const std::string& path, const JsonBounds& most);

}  // namespace qkv::io

#endif  // QKV_IO_JSON_TREE_H_
