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

// The detail of the error for a text that ends within its JSON.
inline constexpr std::string_view kEndOfJson = "expected JSON, got the end";

// Limits on a document. They bound the memory and time that a file can take.
struct JsonBounds {
  const char* what = "";   // name of the document in messages
  int depth = 0;           // levels of nested arrays and objects
  std::size_t values = 0;  // number of arrays, objects and scalars in total
  std::size_t bytes = 0;   // size of a file; not checked for text in memory
};

// A member of the outermost object.
struct JsonMember {
  std::string name{};
  Index byte = 0;  // offset in the text, just after the name
  Json value{};
  std::vector<std::string> names{};  // member names of a value that is an object, in file order
};

struct JsonTree {
  Json root{};                        // the document; an outermost object is left empty
  std::vector<JsonMember> members{};  // the outermost object's members, in file order
};

// A function that throws an error at a byte of the text; `detail` is "expected X, got Y".
using JsonRefuse = std::function<void(Index byte, const std::string& detail)>;

// Parses a document. Calls `refuse` for malformed JSON, documents beyond the limits, duplicate
// members, and objects other than the outermost value and the values of its members.
JsonTree json_tree(std::string_view text, const JsonBounds& most, const JsonRefuse& refuse);

// Reads and parses a file; "-" is standard input. Throws InputError with the line.
JsonTree read_json_tree(const std::string& path, const JsonBounds& most);

}  // namespace qkv::files

#endif  // QKV_FILES_JSON_TREE_H_
