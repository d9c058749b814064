// SPDX-License-Identifier: Apache-2.0
#include "translator/search/continuations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <qkv/app/vocabulary.h>

#include "core/elementary.h"

namespace qkv::app {
namespace {

bool is_better(const Continuation& a, const Continuation& b) {
  if (a.log_probability != b.log_probability) return a.log_probability > b.log_probability;
  return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
}

// The best continuations so far: a heap with the worst of them on top.
class Best {
 public:
  explicit Best(Index wanted) : wanted_(static_cast<std::size_t>(wanted)) {
    all_.reserve(wanted_ + 1);
  }
  bool full() const { return all_.size() == wanted_; }
  double worst() const { return all_.front().log_probability; }
  // Continuations must be offered in the order of rows and tokens: in a tie the later one is
  // dropped.
  void offer(const Continuation& next) {
    if (full() ? !(next.log_probability > worst()) : std::isnan(next.log_probability)) return;
    if (full()) {
      std::pop_heap(all_.begin(), all_.end(), is_better);
      all_.pop_back();
    }
    all_.push_back(next);
    std::push_heap(all_.begin(), all_.end(), is_better);
  }
  std::vector<Continuation> sorted() && {
    std::sort(all_.begin(), all_.end(), is_better);
    return std::move(all_);
  }

 private:
  std::size_t wanted_;
  std::vector<Continuation> all_{};
};

// A lower bound for logits: no logit below it gives a log-probability above `worst`. The margin is
// more than 10^8 times the rounding errors of the log-probability.
template <class T>
T least_logit(double worst, double so_far, double log_sum) {
  const double size = std::abs(worst) + std::abs(so_far) + std::abs(log_sum);
  const auto least = static_cast<T>(worst - so_far + log_sum - 1e-6 * size);
  return std::isfinite(least) ? least : -std::numeric_limits<T>::infinity();
}

}  // namespace

bool Normaliser::given() const { return !std::isnan(log_sum); }

template <class T>
Normaliser normaliser(const T* logits, Index V, RowScores scores,
                      const kernels::LogitKernels<T>& by) {
  const auto largest = static_cast<double>(by.largest(logits, V));
  if (!std::isfinite(largest)) return {largest, std::numeric_limits<double>::quiet_NaN()};
  if (scores == RowScores::kOnlyOrder) return {largest, 0};
  return {largest, largest + core::portable_log(by.sum_of_exponentials(logits, V, largest))};
}

template <class T>
std::vector<Continuation> likeliest(std::span<const ContinuedRow<T>> rows, Index V, Index wanted,
                                    const kernels::LogitKernels<T>& by) {
  Best best(wanted);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const auto& [logits, normaliser, so_far] = rows[k];
    if (!normaliser.given()) continue;
    const auto total = [&, shift = normaliser.log_sum, before = so_far](double x) {
      return before + (x - shift);
    };
    if (best.full() && !(total(normaliser.largest) > best.worst())) continue;
    for (Index v = Vocabulary::kEnd; v < V; ++v) {
      const T least = best.full() ? least_logit<T>(best.worst(), so_far, normaliser.log_sum)
                                  : -std::numeric_limits<T>::infinity();
      v = by.first_from(logits, v, V, least);
      if (v == V) break;
      best.offer({static_cast<Index>(k), static_cast<std::int32_t>(v),
                  total(static_cast<double>(logits[v]))});
    }
  }
  return std::move(best).sorted();
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define QKV_CONTINUATION_INSTANCES(T)                                                          \
  template Normaliser normaliser(const T*, Index, RowScores, const kernels::LogitKernels<T>&); \
  template std::vector<Continuation> likeliest(std::span<const ContinuedRow<T>>, Index, Index, \
                                               const kernels::LogitKernels<T>&)
QKV_CONTINUATION_INSTANCES(float);
QKV_CONTINUATION_INSTANCES(double);
#undef QKV_CONTINUATION_INSTANCES
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace qkv::app
