// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TRANSLATION_H_
#define QKV_APP_TRANSLATION_H_

#include <cstdint>
#include <vector>

#include <qkv/tensor.h>

// The results of a translator's search, and its options.
namespace qkv::app {

// The translation of one source. If NaN logits prevent all hypotheses from being continued before
// any has ended, there are no tokens, and the log-probability is NaN.
struct Translation {
  // The target tokens, with the end token if it was reached, never padding or the start token.
  std::vector<std::int32_t> tokens;
  double log_probability = 0;
  // Attention weights [tokens, source tokens], float32: row i is the attention of the step that
  // chose token i, as the mean over heads if there are several. Absent for
  // TranslatorAttention::kNone and if not requested.
  Tensor attention;
  // One source token index for each token that is Vocabulary::kUnknown, in order: the source token
  // with the largest attention weight of that step, the last source token excluded. Empty for
  // TranslatorAttention::kNone and if not requested.
  std::vector<std::int32_t> unknown_sources{};
};

// Says when a search computes log-probabilities, and not only the order of tokens.
enum class SearchScores {
  kAlways,
  kIfCompared,  // if hypotheses are compared; a greedy search gives the log-probability NaN
};

// Says whether Translation::unknown_sources is filled.
enum class UnknownSources { kIgnored, kFound };

struct SearchOptions {
  Index beam = 1;  // 1 (greedy) to 1000
  // The largest number of tokens, the end token included; 0: 2 x source tokens + 10.
  Index most_tokens = 0;
  double length_penalty = 1;  // hypotheses are compared by log_probability / tokens^penalty
  bool attention = true;      // fill Translation::attention, which takes memory
  SearchScores scores = SearchScores::kAlways;
  UnknownSources unknown = UnknownSources::kIgnored;
};

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATION_H_
