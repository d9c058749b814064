// SPDX-License-Identifier: Apache-2.0
#include <qkv/app/vocabulary.h>

#include "text/text.h"

namespace qkv::app {

std::vector<std::string> split_text(std::string_view text, Tokenization tokenization,
                                    LetterCase letters) {
  const std::string straight = straight_quotes(text);
  // Lower case first: it may change character boundaries.
  const std::string all = letters == LetterCase::kLower ? lower_case(straight) : straight;
  if (tokenization == Tokenization::kWord) return tokenize(all);
  std::vector<std::string> tokens;
  for (const Cluster& cluster : clusters(all)) tokens.emplace_back(cluster.bytes);
  return tokens;
}

}  // namespace qkv::app
