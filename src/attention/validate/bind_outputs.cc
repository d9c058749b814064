// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>

#include "attention/validate/bind.h"
#include "attention/validate/shapes.h"
#include "core/integers.h"
#include "core/message.h"

namespace qkv::attn {
namespace {

using core::Results;
using core::text;

// What the second axis (after the head) of a result counts.
enum class Along { kQueries, kKeys };

// A result with one value per query or key ([..,T]), or a row of `width` of them ([..,T,width]).
// Packed: [H, sum T] and [H, sum T, width].
template <class Void>
core::BasicOperand<Void> bind_rows(const Problem& p, std::string_view name,
                                   const BasicView<Void>& view, Along along, Index width = -1) {
  if (!view.given()) return {};
  const bool queries = along == Along::kQueries;
  Dims expected;
  if (p.packed()) {
    expected = {p.H, queries ? p.q_rows : p.k_rows};
  } else {
    expected = result_shape(p, Dims(queries ? p.Tq : p.Tk));
  }
  if (width >= 0) expected.push_back(width);
  if (view.shape() != expected) {
    const std::string tail = text(queries ? "Tq" : "Tk", width >= 0 ? ",count" : "");
    expect_shape(p, name, view, expected, p.packed() ? "[H,sum " + tail + "]" : tail);
  }
  return to_operand(p, view, view.strides(), width >= 0 ? 2 : 1);
}

template <class Void>
core::BasicOperand<Void> bind_out(const Problem& p, std::string_view name,
                                  const BasicView<Void>& view) {
  if (!view.given()) return {};
  if (p.E == 0) throw Error(p.function, name, "is given but v is absent");
  expect_dtype(p, name, view, p.dtype, "q", p.dtype);
  if (p.packed()) {
    expect_shape(p, name, view, {p.q_rows, p.H, p.E}, "[sum Tq,H,E]");
    return {view.data(), view.dtype(), {}, view.stride(1), view.stride(0), view.stride(2)};
  }
  expect_shape(p, name, view, result_shape(p, {p.Tq, p.E}), "Tq,E");
  return to_operand(p, view, view.strides(), 2);
}

void expect_accumulator(const Problem& p, std::string_view name, const ConstView& view) {
  if (view.given()) expect_dtype(p, name, view, p.accumulator, "q", p.dtype);
}

// Keys in pages have no results by key, nor those of passes over all queries.
void refuse_paged(const Problem& p, std::string_view name, const ConstView& view) {
  if (!p.paged() || !view.given()) return;
  throw Error(p.function, name, "is not available with keys in pages (block_tables)");
}

void check_row_names(const Problem& p, std::string_view list, const ConstView& rows) {
  for (Index r = 0; r < rows.size(0); ++r) {
    const Index row = integer_at(rows, r * rows.stride(0));
    if (row >= 0 && row < p.Tq) continue;
    throw Error(p.function, list,
                text("must be 0 or more and below Tq = ", p.Tq, ", got ",
                     integer_text(rows, r * rows.stride(0)), " at entry ", r));
  }
}

// The list of `count` queries that a result is restricted to.
core::Operand bind_indices(const Problem& p, std::string_view list, const ConstView& rows) {
  expect_integer(p, list, rows);
  if (rows.rank() != 1) {
    throw Error(p.function, list, text("must have the shape [R], got ", describe(rows)));
  }
  return {rows.data(), rows.dtype(), {}, 0, rows.stride(0), 0};
}

// A matrix with one row per query, or per listed query.
template <class Void>
core::BasicRowsOperand<Void> bind_matrix(const Problem& p, std::string_view name,
                                         std::string_view list,
                                         const BasicRows<BasicView<Void>>& rows) {
  if (!rows.matrix.given()) {
    if (rows.rows.given()) throw Error(p.function, name, text("is absent but ", list, " is given"));
    return {};
  }
  if (p.packed()) {
    throw Error(p.function, name, "is not available with packed sequences (cu_seqlens)");
  }
  refuse_paged(p, name, rows.matrix);
  expect_accumulator(p, name, rows.matrix);
  core::BasicRowsOperand<Void> to;
  Index count = p.Tq;
  if (rows.rows.given()) {
    to.indices = bind_indices(p, list, rows.rows);
    count = to.count = rows.rows.size(0);
  }
  const char* letters = rows.rows.given() ? "R,Tk" : "Tq,Tk";
  expect_shape(p, name, rows.matrix, result_shape(p, {count, p.Tk}), letters);
  if (rows.rows.given()) check_row_names(p, list, rows.rows);
  to.matrix = to_operand(p, rows.matrix, rows.matrix.strides(), 2);
  return to;
}

void bind_top(const Problem& p, const Top& top, Results& to) {
  const bool asked = top.weights.given() || top.keys.given();
  if (!asked && top.count == 0) return;
  if (top.count < 1) {
    throw Error(p.function, "top.count", text("must be 1 or more, got ", top.count));
  }
  const auto missing = [&](const char* name) {
    throw Error(p.function, name, text("is absent but top.count is ", top.count));
  };
  if (!top.weights.given()) missing("top.weights");
  if (!top.keys.given()) missing("top.keys");
  refuse_paged(p, "top.count", top.weights);
  expect_accumulator(p, "top.weights", top.weights);
  if (top.keys.dtype() != DType::kInt32 && top.keys.dtype() != DType::kInt64) {
    throw Error(p.function, "top.keys", text("must be int32 or int64, got ", describe(top.keys)),
                ErrorKind::kType);
  }
  if (top.keys.dtype() == DType::kInt32 && p.Tk > std::numeric_limits<std::int32_t>::max()) {
    throw Error(p.function, "top.keys",
                text("must be int64 where Tk = ", p.Tk, ", got ", describe(top.keys)),
                ErrorKind::kType);
  }
  to.top = top.count;
  to.top_weights = bind_rows(p, "top.weights", top.weights, Along::kQueries, top.count);
  to.top_keys = bind_rows(p, "top.keys", top.keys, Along::kQueries, top.count);
}

core::ColumnSumsResult bind_columns(const Problem& p, const Outputs& outputs) {
  const ConstView& rows = outputs.column_sums.rows;
  core::ColumnSumsResult to;
  refuse_paged(p, "column_sums", outputs.column_sums.sums);
  refuse_paged(p, "value_sums", outputs.value_sums);
  expect_accumulator(p, "column_sums", outputs.column_sums.sums);
  to.sums = bind_rows(p, "column_sums", outputs.column_sums.sums, Along::kKeys);
  if (outputs.value_sums.given() && p.E == 0) {
    throw Error(p.function, "value_sums", "is given but v is absent");
  }
  expect_accumulator(p, "value_sums", outputs.value_sums);
  to.value_sums = bind_rows(p, "value_sums", outputs.value_sums, Along::kKeys);
  if (!rows.given()) return to;
  if (!to.given()) {
    throw Error(p.function, "column_sums",
                "is absent, as value_sums is, but column_sums.rows is given");
  }
  if (p.packed()) {
    throw Error(p.function, "column_sums.rows",
                "is not available with packed sequences (cu_seqlens)");
  }
  to.indices = bind_indices(p, "column_sums.rows", rows);
  to.count = rows.size(0);
  check_row_names(p, "column_sums.rows", rows);
  return to;
}

core::PooledResult bind_pooled(const Problem& p, const View& view) {
  if (!view.given()) return {};
  refuse_paged(p, "pooled", view);
  expect_accumulator(p, "pooled", view);
  const Index m = view.rank() < 2 ? 0 : view.size(-2);
  const Index n = view.rank() < 2 ? 0 : view.size(-1);
  const Dims expected = p.packed() ? Dims{p.B, p.H, m, n} : result_shape(p, {m, n});
  if (view.shape() != expected) {
    const std::string letters = p.packed() ? "[B,H,m,n]" : result_letters(p, "m,n");
    const Dims before = p.packed() ? Dims{p.B, p.H} : result_shape(p, {});
    throw Error(p.function, "pooled",
                text("must have the shape ", letters, ", where all before m is ", to_string(before),
                     ", got ", describe(view)));
  }
  const auto fits = [](Index cells, Index T) {
    return cells > 0 && core::checked_multiply(cells, T + 1).has_value();
  };
  if (!fits(m, p.Tq) || !fits(n, p.Tk)) {
    throw Error(p.function, "pooled",
                text("must have m and n of 1 or more, and m Tq and n Tk below 2^63, got ",
                     describe(view), " where Tq = ", p.Tq, " and Tk = ", p.Tk));
  }
  core::PooledResult to{m, n, {}};
  if (p.packed()) {
    to.cells = {view.data(), view.dtype(), {}, view.stride(1), view.stride(2), view.stride(3)};
    to.cells.entry_stride = view.stride(0);
  } else {
    to.cells = to_operand(p, view, view.strides(), 2);
  }
  return to;
}

bool asks_for_nothing(const Outputs& o) {
  return !o.out.given() && !o.lse.given() && !o.row_max.given() && !o.entropy.given() &&
         !o.column_sums.sums.given() && !o.value_sums.given() && !o.pooled.given() &&
         !o.top.weights.given() && !o.top.keys.given() && !o.weights.matrix.given() &&
         !o.dropped_weights.matrix.given() && !o.raw_scores.matrix.given() &&
         !o.capped_scores.matrix.given() && !o.masked_scores.matrix.given();
}

}  // namespace

core::Results bind_outputs(const Problem& p, const Outputs& outputs) {
  Results to;  // absent ones stay as they are: most are, and small calls are all of this
  to.out = bind_out(p, "out", outputs.out);
  const auto per_query = [&](std::string_view name, const View& view, core::ResultOperand& place) {
    if (!view.given()) return;
    expect_accumulator(p, name, view);
    place = bind_rows(p, name, view, Along::kQueries);
  };
  per_query("lse", outputs.lse, to.lse);
  per_query("row_max", outputs.row_max, to.row_max);
  refuse_paged(p, "entropy", outputs.entropy);
  per_query("entropy", outputs.entropy, to.entropy);
  const ColumnSums& columns = outputs.column_sums;
  if (columns.sums.given() || columns.rows.given() || outputs.value_sums.given()) {
    to.columns = bind_columns(p, outputs);
  }
  if (outputs.pooled.given()) to.pooled = bind_pooled(p, outputs.pooled);
  bind_top(p, outputs.top, to);
  const auto matrix = [&](std::string_view name, std::string_view list, const Rows& rows,
                          core::RowsResult& place) {
    if (rows.matrix.given() || rows.rows.given()) place = bind_matrix(p, name, list, rows);
  };
  matrix("weights", "weights.rows", outputs.weights, to.weights);
  matrix("dropped_weights", "dropped_weights.rows", outputs.dropped_weights, to.dropped_weights);
  matrix("raw_scores", "raw_scores.rows", outputs.raw_scores, to.raw_scores);
  matrix("capped_scores", "capped_scores.rows", outputs.capped_scores, to.capped_scores);
  matrix("masked_scores", "masked_scores.rows", outputs.masked_scores, to.masked_scores);
  if (asks_for_nothing(outputs)) {
    throw Error(p.function, "outputs", "name no buffer, so there is nothing to compute");
  }
  return to;
}

core::GradientSources bind_sources(const Problem& p, const Saved& saved,
                                   const OutputGradients& gradients) {
  if (!gradients.out.given() && !gradients.lse.given() && !gradients.weights.matrix.given()) {
    throw Error(p.function, "output_gradients", "name no gradient, so there is nothing to compute");
  }
  if (!saved.lse.given()) {
    throw Error(p.function, "saved.lse", "is absent but the backward pass always needs it");
  }
  if (gradients.out.given() && !saved.out.given()) {
    throw Error(p.function, "saved.out", "is absent but output_gradients.out is given");
  }
  core::GradientSources from;
  from.out = bind_out(p, "saved.out", saved.out);
  expect_accumulator(p, "saved.lse", saved.lse);
  from.lse = bind_rows(p, "saved.lse", saved.lse, Along::kQueries);
  from.dout = bind_out(p, "output_gradients.out", gradients.out);
  expect_accumulator(p, "output_gradients.lse", gradients.lse);
  from.dlse = bind_rows(p, "output_gradients.lse", gradients.lse, Along::kQueries);
  from.dweights = bind_matrix(p, "output_gradients.weights", "output_gradients.weights.rows",
                              gradients.weights);
  return from;
}

}  // namespace qkv::attn
