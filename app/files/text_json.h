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

// The most texts and enclosing lists that a document may have and file readers accept.
inline constexpr std::size_t kMostTextValues = std::size_t{1} << 24;

// The caller has checked that the texts are UTF-8 and fit the shape, and that no axis but the last
// has size 0 (its inner sizes would be lost).
std::string text_to_json(const app::Strings& strings);

// Empty for malformed JSON, anything other than evenly nested strings, and
// more than kMostTextValues.
std::optional<app::Strings> text_from_json(std::string_view json);

}  // namespace qkv::files

#endif  // QKV_FILES_TEXT_JSON_H_
