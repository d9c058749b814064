// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TEXT_H_
#define QKV_APP_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// All of these take UTF-8 and throw Error (argument "text") for other bytes. What they know of
// characters is the Unicode Character Database's: no locale changes it.

// Words and punctuation, in order. The text is cut at white space and control characters;
// punctuation at either end of a piece stands alone, a run of dots or hyphens being one token.
// Inside a piece it stays: "(It's 3.14...)" gives ( It's 3.14 ... ). Letters keep their case.
QKV_API std::vector<std::string> tokenize(std::string_view text);

// Each letter that has a lower-case form in its place.
QKV_API std::string lower_case(std::string_view text);

// The text as it may be shown: line breaks as ↵, tabs as ⇥, other control characters, bytes that
// are no UTF-8 and what XML refuses as U+FFFD; without the marks that turn the direction of
// writing. Takes any bytes.
QKV_API std::string printable(std::string_view text);

// What a reader calls a character: a letter with its marks, a flag, an emoji of several joined.
struct Cluster {
  std::string_view bytes;
  int width = 0;  // columns on a terminal: 0 for a lone mark, 2 for East Asian and emoji, else 1
};

// The characters of a text, which must outlive them.
QKV_API std::vector<Cluster> clusters(std::string_view text);

// Columns on a terminal of printable(text).
QKV_API int display_width(std::string_view text);

// At most `width` columns of printable(text), "…" in place of what had to go.
QKV_API std::string shortened(std::string_view text, int width);

// Whether a letter is written from right to left: Hebrew, Arabic.
QKV_API bool has_right_to_left(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_APP_TEXT_H_
