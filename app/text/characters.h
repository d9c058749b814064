// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_CHARACTERS_H_
#define QKV_TEXT_CHARACTERS_H_

#include <string>
#include <string_view>

#include "core/one_line.h"

// Properties of a code point from the Unicode Character Database, by utf8proc's tables, so the same
// on every machine.
namespace qkv::app {

inline constexpr char32_t kReplacement = 0xFFFD;  // replaces what is not a character

char32_t lower(char32_t c);
// As the first letter of a capitalised word.
char32_t title(char32_t c);
// White space, and control characters: none of them may reach a terminal within a word.
bool is_space(char32_t c);
// Without a width or a shape of its own: Unicode's Default_Ignorable_Code_Point.
bool is_ignorable(char32_t c);
using core::is_control;
using core::is_unseen;
// Punctuation and symbols.
bool is_punctuation(char32_t c);

// An opening bracket or quotation mark, a sign that is written before a number or name; a closing
// one, or punctuation that follows a word at once.
bool opens(char32_t c);
bool closes(char32_t c);
// ' or " for a variant of it, else 0.
char straight_quote(char32_t c);

// The code points; throws Error, naming the public function, if the bytes are not UTF-8.
std::u32string decoded(std::string_view function, std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_CHARACTERS_H_
