// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_UTF8_H_
#define QKV_APP_UTF8_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <qkv/export.h>

namespace qkv::app {

// The code point that starts at text[at]; `at` moves behind it. Nothing, and `at` stays, when the
// bytes there are no UTF-8: cut short, longer than need be, a surrogate, past U+10FFFF.
QKV_API std::optional<char32_t> next_code_point(std::string_view text, std::size_t& at);

// How many bytes stand before the first that is not UTF-8.
QKV_API std::size_t utf8_prefix(std::string_view text);

// All code points; nothing when the text is not UTF-8.
QKV_API std::optional<std::u32string> from_utf8(std::string_view text);

// Adds one code point. Surrogates and numbers past U+10FFFF become U+FFFD.
QKV_API void append_utf8(std::string& text, char32_t code_point);
QKV_API std::string to_utf8(std::u32string_view code_points);

// The text between double quotes, fit for a message on a terminal: control characters and bytes
// that are no UTF-8 as \xNN, marks that turn the direction of writing as \uNNNN, cut after `limit`
// code points.
QKV_API std::string quoted(std::string_view text, std::size_t limit = 40);

}  // namespace qkv::app

#endif  // QKV_APP_UTF8_H_
