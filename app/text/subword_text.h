// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SUBWORD_TEXT_H_
#define QKV_TEXT_SUBWORD_TEXT_H_

#include <string>
#include <string_view>

namespace qkv::app {

// Returns a text in the form in which subword models read it. Any run of white space, control
// characters, U+FEFF and SentencePiece's sign for a blank becomes one blank; a run at either end is
// removed. A text that is_blank() becomes empty. Throws Error for invalid UTF-8.
std::string with_single_blanks(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_SUBWORD_TEXT_H_
