// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_SPECIAL_TOKENS_H_
#define QKV_APP_SPECIAL_TOKENS_H_

#include <span>
#include <string_view>

#include <qkv/export.h>

namespace qkv::app {

// Tokens that models put around a text; letters compare without case. Tokens that stand for a word
// of the text ("<unk>", "[MASK]") are none of them.
QKV_API std::span<const std::string_view> special_tokens();

// One of the list, or the empty token that fills up short lists.
QKV_API bool is_special(std::string_view token);

// Fills a text up to a length: "[PAD]", "<pad>", "<|pad|>", the empty token.
QKV_API bool is_padding(std::string_view token);

}  // namespace qkv::app

#endif  // QKV_APP_SPECIAL_TOKENS_H_
