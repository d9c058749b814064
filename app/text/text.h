// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_TEXT_H_
#define QKV_TEXT_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// Unless their comments say otherwise, the functions below throw Error (argument "text") for
// invalid UTF-8. Character properties are those of the Unicode Character Database, independent of
// the locale.

// Splits a text into words and punctuation, in order. The text is split at white space, control
// characters and U+FEFF; then punctuation at either end of a piece is split off, a run of dots or
// hyphens as one token. Punctuation inside a piece is kept: "(It's 3.14...)" gives
// ( It's 3.14 ... ). Letters keep their case.
QKV_API std::vector<std::string> tokenize(std::string_view text);

// Returns the tokens of tokenize() as views into the text, which must outlive them. The white space
// between two tokens lies between their views.
QKV_API std::vector<std::string_view> token_views(std::string_view text);

// Whether a token consists of punctuation and symbols alone: "...", but not "<unk>".
QKV_API bool is_punctuation_token(std::string_view token);

// Replaces curly, low and prime quotation marks by straight ones: ’ ‘ ‚ ‛ ′ ´ ʼ by ', “ ” „ ‟ ″
// by ". Guillemets and invalid UTF-8 are kept.
QKV_API std::string straight_quotes(std::string_view text);

// Converts the first letter to its form at the beginning of a sentence.
QKV_API std::string capitalized(std::string_view text);

// Converts letters to lower case.
QKV_API std::string lower_case(std::string_view text);

// Whether a text has nothing visible: only white space, control characters, and characters without
// a width or a shape of their own (Unicode's Default_Ignorable_Code_Point: zero-width spaces and
// joiners, U+FEFF, variation selectors, soft hyphens). Such a text is read as an empty one.
QKV_API bool is_blank(std::string_view text);
bool is_blank(std::u32string_view characters);

// Converts any bytes to printable text: line breaks become ↵ and tabs ⇥; other control characters,
// invalid UTF-8 and characters not allowed in XML become U+FFFD; invisible marks, such as
// bidirectional control marks and zero-width spaces, are removed.
QKV_API std::string printable(std::string_view text);

// A user-perceived character: a letter with its marks, a flag, an emoji sequence.
struct Cluster {
  std::string_view bytes;
  int width = 0;  // columns on a terminal: 0 for a lone mark, 2 for East Asian and emoji, else 1
};

// The user-perceived characters of a text, which must outlive them.
QKV_API std::vector<Cluster> clusters(std::string_view text);

// The columns that printable(text) takes on a terminal.
QKV_API int display_width(std::string_view text);

// Shortens printable(text) to at most `width` columns, with "…" for the truncated part.
QKV_API std::string shortened(std::string_view text, int width);

// Whether the text has a letter that is written from right to left, as in Hebrew and Arabic.
QKV_API bool has_right_to_left(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_TEXT_H_
