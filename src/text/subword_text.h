// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SUBWORD_TEXT_H_
#define QKV_TEXT_SUBWORD_TEXT_H_

#include <string>
#include <string_view>

namespace qkv::app {

// As subwords read a text: any run of white space and control characters is one blank, and nothing
// at either end. Throws Error for what is not UTF-8.
std::string with_single_blanks(std::string_view text);

}  // namespace qkv::app

#endif  // QKV_TEXT_SUBWORD_TEXT_H_
