// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TOKENIZATION_H_
#define QKV_APP_TOKENIZATION_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

namespace qkv::app {

// What a translator reads and writes one after the other.
enum class Tokenization {
  kCharacter,  // what a reader calls a character (clusters() of text.h), blanks too
  kWord,       // words and punctuation (tokenize() of text.h)
};
enum class LetterCase { kKept, kLower };

// The tokens of a text. Throws Error for what is not UTF-8.
QKV_API std::vector<std::string> split_text(std::string_view text, Tokenization tokenization,
                                            LetterCase letters = LetterCase::kKept);

// The text of tokens: characters one after the other, words with a blank between them. What was
// split by characters comes back as it was; of words the white space does not.
QKV_API std::string join_text(std::span<const std::string> tokens, Tokenization tokenization);

}  // namespace qkv::app

#endif  // QKV_APP_TOKENIZATION_H_
