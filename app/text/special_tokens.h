// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_SPECIAL_TOKENS_H_
#define QKV_TEXT_SPECIAL_TOKENS_H_

#include <span>
#include <string_view>

#include <qkv/export.h>

namespace qkv::app {

// Tokens that models add around a text, compared case-insensitively. Tokens that replace a word
// of the text ("<unk>", "[MASK]") are not among them.
QKV_API std::span<const std::string_view> special_tokens();

// Whether a token is one of special_tokens(), or the empty token that pads short lists.
QKV_API bool is_special(std::string_view token);

// Whether two special tokens are equal without regard to case.
QKV_API bool is_same_special(std::string_view a, std::string_view b);

// Whether a token is padding: "[PAD]", "<pad>", "<|pad|>" or the empty token.
QKV_API bool is_padding(std::string_view token);

}  // namespace qkv::app

#endif  // QKV_TEXT_SPECIAL_TOKENS_H_
