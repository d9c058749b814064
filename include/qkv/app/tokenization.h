// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TOKENIZATION_H_
#define QKV_APP_TOKENIZATION_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// A translator's units of text.
enum class Tokenization {
  kCharacter,  // user-perceived characters (clusters() of text.h), including blanks
  kWord,       // words and punctuation (tokenize() of text.h)
};
enum class LetterCase { kKept, kLower };

// The tokens of a text. Throws Error for what is not UTF-8.
QKV_API std::vector<std::string> split_text(std::string_view text, Tokenization tokenization,
                                            LetterCase letters = LetterCase::kKept);

// Joins tokens to a text: characters without separator, words with a space. This restores
// text split into characters exactly, and text split into words except for white space.
QKV_API std::string join_text(std::span<const std::string> tokens, Tokenization tokenization);

}  // namespace qkv::app

#endif  // QKV_APP_TOKENIZATION_H_
