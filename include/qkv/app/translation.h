// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_TRANSLATION_H_
#define QKV_APP_TRANSLATION_H_

#include <cstdint>
#include <vector>

#include <qkv/tensor.h>

// What a translator's search gives, and what it may be asked for.
namespace qkv::app {

// If a model's outputs are all NaN before a hypothesis has ended, there are no tokens, and the
// log-probability is NaN.
struct Translation {
  // With the end token, if it was reached; never padding or the start token.
  std::vector<std::int32_t> tokens;
  double log_probability = 0;
  // [tokens, source tokens] float32: row i is the attention when token i was chosen; absent for
  // kNone. The mean over heads, if any.
  Tensor attention;
  // For each token that is Vocabulary::kUnknown, in order: the source token, other than the last
  // one, which was looked at most when it was chosen; if asked for, and empty for kNone.
  std::vector<std::int32_t> unknown_sources{};
};

// When the probabilities of tokens are computed, in addition to their order.
enum class SearchScores {
  kAlways,
  kIfCompared,  // not by a greedy search, which then says that the log-probability is NaN
};

// Whether Translation::unknown_sources is filled.
enum class UnknownSources { kIgnored, kFound };

struct SearchOptions {
  Index beam = 1;             // 1 (greedy) to 1000
  Index most_tokens = 0;      // a translation's, its end included; 0: 2 source tokens + 10
  double length_penalty = 1;  // hypotheses are compared by log_probability / tokens^penalty
  bool attention = true;      // fill Translation::attention, which takes memory
  SearchScores scores = SearchScores::kAlways;
  UnknownSources unknown = UnknownSources::kIgnored;
};

}  // namespace qkv::app

#endif  // QKV_APP_TRANSLATION_H_
