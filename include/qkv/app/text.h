// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TEXT_H_
#define QKV_APP_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// All of these take UTF-8 and throw Error (argument "text") for other bytes.

// Words and punctuation, in order. The text is cut at white space and control characters;
// punctuation at either end of a
// piece stands alone, a run of dots or hyphens being one token. Inside a piece it stays:
// "(It's 3.14...)" gives ( It's 3.14 ... ). Letters keep their case.
QKV_API std::vector<std::string> tokenize(std::string_view text);

// Each letter that has a lower-case form in its place.
QKV_API std::string lower_case(std::string_view text);

// Columns on a terminal: 0 for combining marks, 2 for wide characters (East Asian, emoji), else 1.
QKV_API int display_width(std::string_view text);

// At most `width` columns of the text, "…" in place of what had to go.
QKV_API std::string shortened(std::string_view text, int width);

}  // namespace qkv::app

#endif  // QKV_APP_TEXT_H_
