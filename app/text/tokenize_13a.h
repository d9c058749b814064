// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_TOKENIZE_13A_H_
#define QKV_TEXT_TOKENIZE_13A_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// Whether scores count a code point as white space: what Unicode's property White_Space names
// (no-break spaces, but not U+200B), and U+001C to U+001F, as Python's str.split does, by which
// sacreBLEU splits.
QKV_API bool is_white_space(char32_t c);

// The tokens of BLEU's tokenizer "13a": NIST's mteval-v13a.pl with the language-dependent part for
// Western languages, as sacreBLEU has it (Post 2018, "A Call for Clarity in Reporting BLEU
// Scores"). ASCII punctuation except ' - . and , stands alone; a full stop or a comma does unless
// it is between digits; a hyphen does after a digit; &quot; &amp; &lt; &gt; are the characters
// they mean. Everything else is split at white space only: "aujourd’hui" and a Chinese sentence
// are one token each. Throws Error (argument "text") for invalid UTF-8.
QKV_API std::vector<std::string> tokenize_13a(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_TOKENIZE_13A_H_
