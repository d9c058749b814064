// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_SEARCH_CONTINUATIONS_H_
#define QKV_TRANSLATOR_SEARCH_CONTINUATIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <qkv/view.h>

#include "kernels/choice_kernels.h"

// The likeliest next tokens of a source's hypotheses. Logits stay as they are: no row of
// log-probabilities is written, and all but few numbers are compared with one only.
namespace qkv::app {

// A hypothesis, continued by a token.
struct Continuation {
  Index parent = 0;
  std::int32_t token = 0;
  double log_probability = 0;  // of the whole
};

// log(sum of e^x_v), in float64; NaN if a logit is NaN or none is finite.
struct Normaliser {
  double largest = 0;
  double log_sum = 0;

  // Whether any token can be chosen.
  bool given() const;
};

// What a row of V logits is measured by. Without scores: as if the probabilities were the logits.
enum class RowScores { kLogProbabilities, kOnlyOrder };
template <class T>
Normaliser normaliser(const T* logits, Index V, RowScores scores,
                      const kernels::ChoiceKernels<T>& by);

// A hypothesis: the logits of its next token, and its log-probability.
template <class T>
struct ContinuedRow {
  const T* logits = nullptr;
  Normaliser normaliser{};
  double so_far = 0;
};

// The `wanted` likeliest continuations by a token other than padding and the start, best first: a
// tie goes to the first row, then to the lower token. A logit x adds x - log_sum. Fewer if there
// are fewer numbers: NaN is never chosen.
template <class T>
std::vector<Continuation> likeliest(std::span<const ContinuedRow<T>> rows, Index V, Index wanted,
                                    const kernels::ChoiceKernels<T>& by);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_SEARCH_CONTINUATIONS_H_
