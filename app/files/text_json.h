// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_TEXT_JSON_H_
#define QKV_FILES_TEXT_JSON_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <qkv/app/array_file.h>

// Text of any shape as JSON: an array of strings, arrays of such arrays, or a single string.
namespace qkv::files {

// The most texts and enclosing lists in a document, for writers and for readers.
inline constexpr std::size_t kMostTextValues = std::size_t{1} << 24;

// Converts text to JSON. The caller must have checked that the texts are UTF-8 and fit the shape,
// and that no axis but the last has size 0 (the sizes after it would be lost).
std::string text_to_json(const app::Strings& strings);

// Parses text from JSON. Returns none for malformed JSON, for anything other than evenly nested
// strings, and for more than kMostTextValues values.
std::optional<app::Strings> text_from_json(std::string_view json);

}  // namespace qkv::files

#endif  // QKV_FILES_TEXT_JSON_H_
