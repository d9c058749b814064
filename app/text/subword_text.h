// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SUBWORD_TEXT_H_
#define QKV_TEXT_SUBWORD_TEXT_H_

#include <string>
#include <string_view>

namespace qkv::app {

// As subwords read a text: any run of white space, control characters, U+FEFF and SentencePiece's
// sign for a blank is one blank, and nothing at either end; a text that is_blank() is nothing.
// Throws Error for what is not UTF-8.
std::string with_single_blanks(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_SUBWORD_TEXT_H_
