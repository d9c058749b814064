// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_CONTINUATIONS_H_
#define QKV_TRANSLATOR_SEARCH_CONTINUATIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/view.h>

#include "kernels/logit_kernels.h"

// The likeliest next tokens of a source's hypotheses, found in the logits themselves: no row of
// log-probabilities is written, and nearly all logits are compared with only one number.
namespace qkv::app {

// A hypothesis continued by one token.
struct Continuation {
  Index parent = 0;
  std::int32_t token = 0;
  double log_probability = 0;  // of the hypothesis with this token
};

// The normaliser of a row of logits.
struct Normaliser {
  double largest = 0;  // the largest logit; NaN if a logit is NaN
  double log_sum = 0;  // log(sum of e^logit) in float64; NaN unless `largest` is finite

  // True if a token can be chosen from the row.
  bool given() const;
};

// The numbers by which tokens are compared. With kOnlyOrder they are a row's logits, which have the
// order of its log-probabilities: normaliser() then sets log_sum to 0 instead of the logarithm.
enum class RowScores { kLogProbabilities, kOnlyOrder };
template <class T>
Normaliser normaliser(const T* logits, Index V, RowScores scores,
                      const kernels::LogitKernels<T>& by);

// A hypothesis to be continued: the logits of its next token, and its log-probability.
template <class T>
struct ContinuedRow {
  const T* logits = nullptr;
  Normaliser normaliser{};
  double so_far = 0;
};

// The `wanted` likeliest continuations by a token other than padding and the start token, best
// first. The token with logit x has the log-probability so_far + x - log_sum. In a tie, the
// continuation of the earlier row is better; within a row, that with the lower token. The result is
// shorter if too few log-probabilities are numbers: NaN is never chosen.
template <class T>
std::vector<Continuation> likeliest(std::span<const ContinuedRow<T>> rows, Index V, Index wanted,
                                    const kernels::LogitKernels<T>& by);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_CONTINUATIONS_H_
