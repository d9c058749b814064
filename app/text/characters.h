// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CHARACTERS_H_
#define QKV_TEXT_CHARACTERS_H_

#include <string>
#include <string_view>

#include "core/one_line.h"

// Properties of a code point from the Unicode Character Database. They come from utf8proc's tables,
// so that they are the same on every machine.
namespace qkv::app {

inline constexpr char32_t kReplacement = 0xFFFD;  // stands for bytes that are not a character

char32_t lower(char32_t c);
// The form of a letter at the beginning of a capitalised word.
char32_t title(char32_t c);
// Whether a code point is white space, U+FEFF or a control character. Control characters must not
// reach a terminal within a word.
bool is_space(char32_t c);
// Whether a code point has no width or shape of its own (Unicode's Default_Ignorable_Code_Point).
bool is_ignorable(char32_t c);
using core::is_control;
using core::is_unseen;
// Whether a code point is punctuation or a symbol.
bool is_punctuation(char32_t c);

// opens(): whether a code point is an opening bracket or quotation mark, or a sign that is written
// before a number or name. closes(): whether it is a closing bracket or quotation mark, or
// punctuation that directly follows a word.
bool opens(char32_t c);
bool closes(char32_t c);
// Returns ' or " for a typographic variant of that mark, else 0.
char straight_quote(char32_t c);

// Decodes UTF-8 to code points. Throws Error in the name of the public `function` for invalid
// UTF-8.
std::u32string decoded(std::string_view function, std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_CHARACTERS_H_
