// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/vocabulary.h>

#include "text/text.h"

namespace qkv::app {

std::vector<std::string> split_text(std::string_view text, Tokenization tokenization,
                                    LetterCase letters) {
  // Lower case first: it may change character boundaries.
  const std::string all = letters == LetterCase::kLower ? lower_case(text) : std::string(text);
  if (tokenization == Tokenization::kWord) return tokenize(all);
  std::vector<std::string> tokens;
  for (const Cluster& cluster : clusters(all)) tokens.emplace_back(cluster.bytes);
  return tokens;
}

std::string join_text(std::span<const std::string> tokens, Tokenization tokenization) {
  const bool words = tokenization == Tokenization::kWord;
  std::string text;
  for (const std::string& token : tokens) {
    if (words && !text.empty()) text += ' ';
    text += token;
  }
  return text;
}

}  // namespace qkv::app
