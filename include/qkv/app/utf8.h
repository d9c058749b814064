// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_UTF8_H_
#define QKV_APP_UTF8_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <qkv/export.h>

namespace qkv::app {

// The code point that starts at text[at]; advances `at` past it. The result is empty, with `at`
// unchanged, for invalid UTF-8: truncated, overlong, a surrogate, past U+10FFFF.
QKV_API std::optional<char32_t> next_code_point(std::string_view text, std::size_t& at);

// The number of bytes before the first invalid sequence.
QKV_API std::size_t utf8_prefix(std::string_view text);

// All code points of a text; empty if the text is not valid UTF-8.
QKV_API std::optional<std::u32string> from_utf8(std::string_view text);

// Appends one code point. Surrogates and numbers past U+10FFFF become U+FFFD.
QKV_API void append_utf8(std::string& text, char32_t code_point);
QKV_API std::string to_utf8(std::u32string_view code_points);

// A name as messages and reports write it, on one line and safe on a terminal: control characters,
// invalid UTF-8 and invisible marks, such as line separators and bidirectional control marks,
// become \xNN, or \uNNNN from U+0100 on.
QKV_API std::string on_one_line(std::string_view text);

// The text of on_one_line() in double quotes, truncated after `limit` code points.
QKV_API std::string quoted(std::string_view text, std::size_t limit = 40);

}  // namespace qkv::app

#endif  // QKV_APP_UTF8_H_
