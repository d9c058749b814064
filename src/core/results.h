// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_RESULTS_H_
#define QKV_CORE_RESULTS_H_

#include <array>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <qkv/expression.h>
#include <qkv/outputs.h>

#include "core/operand.h"

// The results of a call, the arrays that a backward call reads and the gradients that it writes, as
// operands. A result that was not requested is absent.
namespace qkv::core {

// All rows of a matrix, or only those of the `count` queries listed in `indices`.
template <class Void>
struct BasicRowsOperand {
  Operand indices;  // rows = entries of the list
  Index count = 0;
  BasicOperand<Void> matrix;  // rows = queries or listed rows, columns = keys
  bool given() const noexcept { return matrix.given(); }
};
using RowsResult = BasicRowsOperand<void>;
using RowsOperand = BasicRowsOperand<const void>;

// Sums over all queries, or over the `count` queries listed in `indices`.
struct ColumnSumsResult {
  Operand indices;  // rows = entries of the list
  Index count = 0;
  ResultOperand sums;        // rows = keys
  ResultOperand value_sums;  // rows = keys
  bool given() const noexcept { return sums.given() || value_sums.given(); }
};

// The matrix of m x n cells in which weights are pooled: see core/integers.h.
struct PooledResult {
  Index m = 0;
  Index n = 0;
  ResultOperand cells;  // rows, columns = cells
  bool given() const noexcept { return cells.given(); }
};

// The `count` largest weights of each query and their keys; count is 0 if they are absent.
struct TopResult {
  Index count = 0;
  ResultOperand weights;  // rows = queries, columns = rank
  ResultOperand keys;     // rows = queries, columns = rank
};

// The state of the softmax, read before the keys of the call and written after them.
struct StateResult {
  ResultOperand max, sum;  // rows = queries
  ResultOperand acc;       // rows = queries, columns = channels; absent without values
  bool given() const noexcept { return max.given(); }
};

struct Results {
  StateResult state;      // not in qkv::kResults
  ResultOperand out;      // rows = queries, columns = channels
  ResultOperand lse;      // rows = queries
  ResultOperand row_max;  // rows = queries
  ResultOperand entropy;  // rows = queries
  ColumnSumsResult columns;
  PooledResult pooled;
  TopResult top;
  RowsResult weights, dropped_weights, raw_scores, capped_scores, masked_scores;

  // References to the members that hold the entries of qkv::kResults, in the order of that list.
  auto places() noexcept {
    return std::tie(out, lse, row_max, entropy, columns, columns.value_sums, pooled, top, weights,
                    dropped_weights, raw_scores, capped_scores, masked_scores);
  }
  std::array<const RowsResult*, 5> matrices() const noexcept {
    return {&weights, &dropped_weights, &raw_scores, &capped_scores, &masked_scores};
  }
};

// Calls f(result, place) for each entry of qkv::kResults; `place` is the member of `to` that holds
// it.
template <class F>
void for_each_result(Results& to, const F& f) {
  constexpr std::size_t kCount = std::tuple_size_v<decltype(kResults)>;
  const auto places = to.places();
  static_assert(std::tuple_size_v<decltype(places)> == kCount,
                "Results::places() has a place for each entry of qkv::kResults");
  [&]<std::size_t... n>(std::index_sequence<n...>) {
    (f(std::get<n>(kResults), std::get<n>(places)), ...);
  }(std::make_index_sequence<kCount>());
}

// Calls f(result, operand) for each buffer of a result, in the order of qkv::for_each_buffer.
template <class F>
void for_each_operand(Results& to, const F& f) {
  for_each_result(to, [&]<class Place>(const auto& result, Place& place) {
    if constexpr (std::is_same_v<Place, ResultOperand>) {
      f(result, place);
    } else if constexpr (std::is_same_v<Place, ColumnSumsResult>) {
      f(result, place.sums);
    } else if constexpr (std::is_same_v<Place, PooledResult>) {
      f(result, place.cells);
    } else if constexpr (std::is_same_v<Place, TopResult>) {
      f(result, place.weights);
      f(result, place.keys);
    } else {
      f(result, place.matrix);
    }
  });
}

// The arrays that the backward pass reads.
struct GradientSources {
  Operand out, lse;  // saved by the forward pass
  // Sums of exp(s_j - lse) over the keys of all shards, float64; if absent, they are computed from
  // the keys of the call.
  Operand weight_sums;
  Operand dout, dlse;  // gradients of the loss with respect to out and lse, with their axes
  RowsOperand dweights;
};

// The destination of one gradient: the user's buffer, which has the shape of the array whose
// gradient it receives. `direct` addresses the buffer as an operand; `own` has the strides that a
// C-ordered array of that shape has along the problem's axes. Broadcast axes have stride 0 in
// `direct` and `own`, so that additions along them accumulate in one element.
struct GradientTarget {
  View buffer;
  ResultOperand direct;
  ResultOperand own;        // strides only, of the C-ordered array
  bool accumulate = false;  // the gradient, summed from zero, is added to the buffer's contents
  bool continues = false;   // the sum starts from the buffer's contents (attention_backward_step)
  bool given() const noexcept { return buffer.given(); }
};

// The gradients of the parameters of the input transforms (row maps) of q, or of k.
struct RowMapTargets {
  GradientTarget gain;  // gain of a norm
  GradientTarget w, b;  // matrix and bias of the product
};

// The destination of the gradient of an array that scores read (qkv/expression.h).
struct CapturedTarget {
  std::shared_ptr<const detail::CapturedArray> array;
  View buffer;
  bool accumulate = false;
};

struct GradientResults {
  GradientTarget q, k, v;
  RowMapTargets query, key;
  GradientTarget score_v;
  GradientTarget bias, alibi, sinks;
  std::vector<CapturedTarget> captured{};
  // If given, the call computes no gradient but adds its keys' weights to these sums: float64, rows
  // = queries.
  ResultOperand weight_sums{};

  // Pointers to all targets of `to` but the captured ones, each once; they are const if `to` is.
  template <class Self>
  static auto all_of(Self& to) noexcept {
    return std::array{&to.q,       &to.k,        &to.v,     &to.query.gain, &to.query.w,
                      &to.query.b, &to.key.gain, &to.key.w, &to.key.b,      &to.score_v,
                      &to.bias,    &to.alibi,    &to.sinks};
  }
  auto all() const noexcept { return all_of(*this); }
  auto all() noexcept { return all_of(*this); }
};

inline constexpr std::size_t kGradientTargets =
    std::tuple_size_v<decltype(std::declval<GradientResults>().all())>;
static_assert(sizeof(GradientResults) == kGradientTargets * sizeof(GradientTarget) +
                                             sizeof(std::vector<CapturedTarget>) +
                                             sizeof(ResultOperand),
              "GradientResults::all() lists every GradientTarget");

}  // namespace qkv::core

#endif  // QKV_CORE_RESULTS_H_
