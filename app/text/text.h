// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_TEXT_H_
#define QKV_TEXT_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// All of these take UTF-8 and throw Error (argument "text") for invalid UTF-8. Character properties
// are those of the Unicode Character Database, independent of the locale.

// Words and punctuation, in order. The text is split at white space and control characters;
// punctuation at either end of a piece is split off, a run of dots or hyphens being one token.
// Inside a piece it is kept: "(It's 3.14...)" gives ( It's 3.14 ... ). Letters keep their case.
QKV_API std::vector<std::string> tokenize(std::string_view text);

// The same tokens as parts of the text, which must outlive them: the white space between two of
// them is what is between the parts.
QKV_API std::vector<std::string_view> token_views(std::string_view text);

// Whether a token is punctuation and symbols from beginning to end: "...", but not "<unk>".
QKV_API bool is_punctuation_token(std::string_view token);

// Curly, low and prime quotation marks as typed ones: ’ ‘ ‚ ‛ ′ ´ ʼ as ', “ ” „ ‟ ″ as ".
// Guillemets and invalid UTF-8 are kept.
QKV_API std::string straight_quotes(std::string_view text);

// The text with its first letter as at the beginning of a sentence.
QKV_API std::string capitalized(std::string_view text);

// Converts letters to lower case.
QKV_API std::string lower_case(std::string_view text);

// Whether a text has nothing to see: white space, control characters, and characters without a
// width or a shape of their own (Unicode's Default_Ignorable_Code_Point: zero-width spaces and
// joiners, U+FEFF, variation selectors, soft hyphens). Such a text is read as the empty one.
QKV_API bool is_blank(std::string_view text);
bool is_blank(std::u32string_view characters);

// The text in printable form: line breaks as ↵, tabs as ⇥, other control characters, invalid
// UTF-8 and characters not allowed in XML as U+FFFD; bidirectional control marks
// removed. Takes any bytes.
QKV_API std::string printable(std::string_view text);

// A user-perceived character: a letter with its marks, a flag, an emoji sequence.
struct Cluster {
  std::string_view bytes;
  int width = 0;  // columns on a terminal: 0 for a lone mark, 2 for East Asian and emoji, else 1
};

// The characters of a text, which must outlive them.
QKV_API std::vector<Cluster> clusters(std::string_view text);

// Columns on a terminal of printable(text).
QKV_API int display_width(std::string_view text);

// At most `width` columns of printable(text), with "…" for the truncated part.
QKV_API std::string shortened(std::string_view text, int width);

// Whether a letter is written from right to left: Hebrew, Arabic.
QKV_API bool has_right_to_left(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_TEXT_H_
