// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TEXT_WORD_SPACES_H_
#define QKV_TEXT_WORD_SPACES_H_

#include <span>
#include <string>

#include <qkv/app/text_style.h>

namespace qkv::app {

// Joins word tokens into a text, with spaces as people write them in the given style.
std::string joined_words(std::span<const std::string> words, const TextStyle& style);

}  // namespace qkv::app

#endif  // QKV_TEXT_WORD_SPACES_H_
