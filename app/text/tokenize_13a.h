// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_TOKENIZE_13A_H_
#define QKV_TEXT_TOKENIZE_13A_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// Whether scores count a code point as white space, as sacreBLEU does with Python's str.split:
// one with Unicode's property White_Space (no-break spaces, but not U+200B), or one of U+001C to
// U+001F.
QKV_API bool is_white_space(char32_t c);

// Splits a text by BLEU's tokenizer "13a": NIST's mteval-v13a.pl with the language-dependent part
// for Western languages, as in sacreBLEU (Post 2018, "A Call for Clarity in Reporting BLEU
// Scores"). ASCII punctuation except ' - . and , is a token of its own; so is a full stop or a
// comma unless it is between digits, and a hyphen after a digit. &quot; &amp; &lt; &gt; become the
// characters that they mean. Everything else is split at white space only: "aujourd’hui" and a
// Chinese sentence are one token each. Throws Error (argument "text") for invalid UTF-8.
QKV_API std::vector<std::string> tokenize_13a(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_TOKENIZE_13A_H_
