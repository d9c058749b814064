// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_RESULTS_H_
#define QKV_CORE_RESULTS_H_

#include <array>

#include "core/operand.h"

// Where a call's results go and gradients come from, as operands. An absent one was not requested.
namespace qkv::core {

// Rows of a matrix, all or listed: `indices` holds `count` query numbers (in rows), or is absent.
template <class Void>
struct BasicRowsOperand {
  Operand indices;
  Index count = 0;
  BasicOperand<Void> matrix;  // rows = queries or listed rows, columns = keys
  bool given() const noexcept { return matrix.given(); }
};
using RowsResult = BasicRowsOperand<void>;
using RowsOperand = BasicRowsOperand<const void>;

// Sums over queries, all or listed: `indices` holds `count` query numbers (in rows), or is absent.
struct ColumnSumsResult {
  Operand indices;
  Index count = 0;
  ResultOperand sums;        // rows = keys
  ResultOperand value_sums;  // rows = keys
  bool given() const noexcept { return sums.given() || value_sums.given(); }
};

// A matrix of cells: see core/integers.h.
struct PooledResult {
  Index m = 0;
  Index n = 0;
  ResultOperand cells;  // rows, columns = those of cells
  bool given() const noexcept { return cells.given(); }
};

struct Results {
  ResultOperand out;      // rows = queries, columns = channels
  ResultOperand lse;      // rows = queries
  ResultOperand row_max;  // rows = queries
  ResultOperand entropy;  // rows = queries
  ColumnSumsResult columns;
  PooledResult pooled;
  Index top = 0;
  ResultOperand top_weights;  // rows = queries, columns = rank
  ResultOperand top_keys;
  RowsResult weights, dropped_weights, raw_scores, capped_scores, masked_scores;
};

// What the backward pass reads.
struct GradientSources {
  Operand out, lse;    // saved by the forward pass
  Operand dout, dlse;  // as out, lse
  RowsOperand dweights;
};

// Where one gradient goes: the user's buffer, which has the shape of the gradient's source, as an
// operand, and the strides of a C-ordered array of that shape along the problem's axes. Broadcast
// axes have stride 0 in both: writing to them sums.
struct GradientTarget {
  View buffer;
  ResultOperand direct;
  ResultOperand own;        // strides only
  bool accumulate = false;  // added to the contents
  bool given() const noexcept { return buffer.given(); }
};

// The parameters of the row maps of q, or of k.
struct RowMapTargets {
  GradientTarget gain;  // of a norm
  GradientTarget w, b;  // of the product
};

struct GradientResults {
  GradientTarget q, k, v;
  RowMapTargets query, key;
  GradientTarget score_v;
  GradientTarget bias, alibi, sinks;

  // Every target once.
  static constexpr std::size_t kCount = 13;
  std::array<const GradientTarget*, kCount> all() const noexcept {
    return {&q,     &k,     &v,       &query.gain, &query.w, &query.b, &key.gain,
            &key.w, &key.b, &score_v, &bias,       &alibi,   &sinks};
  }
  std::array<GradientTarget*, kCount> all() noexcept {
    return {&q,     &k,     &v,       &query.gain, &query.w, &query.b, &key.gain,
            &key.w, &key.b, &score_v, &bias,       &alibi,   &sinks};
  }
};

}  // namespace qkv::core

#endif  // QKV_CORE_RESULTS_H_
