// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "attention/validate/bind.h"
#include "attention/validate/shapes.h"
#include "core/integers.h"
#include "core/message.h"
#include "core/parameter_name.h"

namespace qkv::attn {
namespace {

using core::Results;
using core::text;

// Whether the axis of a result that follows its head axis counts queries or keys.
enum class Along { kQueries, kKeys };

// Binds a result with one number per query or key ([..,T]) or, if width >= 0, with a row of `width`
// numbers ([..,T,width]). Packed: [H, sum T] and [H, sum T, width].
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

// Refuses a result that is not computed for keys in pages: one by key, or one that needs a second
// pass over all queries.
void refuse_paged(const Problem& p, std::string_view name, const ConstView& view) {
  if (!p.paged() || !view.given()) return;
  throw Error(p.function, name, "is not available with keys in pages (block_tables)");
}

void check_listed_rows(const Problem& p, std::string_view list, const ConstView& rows) {
  for (Index r = 0; r < rows.size(0); ++r) {
    const Index row = integer_at(rows, r * rows.stride(0));
    if (row >= 0 && row < p.Tq) continue;
    throw Error(p.function, list,
                text("must be 0 or more and below Tq = ", p.Tq, ", got ",
                     integer_text(rows, r * rows.stride(0)), " at entry ", r));
  }
}

// Makes the operand of `rows`, the list of queries to which a result is restricted.
core::Operand bind_indices(const Problem& p, std::string_view list, const ConstView& rows) {
  if (p.on_device()) refuse_on_device(p, list);  // the list's numbers must be checked
  expect_integer(p, list, rows);
  if (rows.rank() != 1) {
    throw Error(p.function, list, text("must have the shape [R], got ", describe(rows)));
  }
  return {rows.data(), rows.dtype(), {}, 0, rows.stride(0), 0};
}

// Binds a matrix with one row per query, or per listed query.
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
  if (rows.rows.given()) check_listed_rows(p, list, rows.rows);
  to.matrix = to_operand(p, rows.matrix, rows.matrix.strides(), 2);
  return to;
}

void bind_top(const Problem& p, const Top& top, core::TopResult& to) {
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
  to.count = top.count;
  to.weights = bind_rows(p, "top.weights", top.weights, Along::kQueries, top.count);
  to.keys = bind_rows(p, "top.keys", top.keys, Along::kQueries, top.count);
}

// Binds a result with one number per query or per key.
void bind_numbers(const Problem& p, const Result<View>& result, const View& view,
                  core::ResultOperand& to) {
  if (!view.given()) return;
  if (!result.calls.in_pages) refuse_paged(p, result.name, view);
  if (!result.calls.without_values && p.E == 0) {
    throw Error(p.function, result.name, "is given but v is absent");
  }
  expect_accumulator(p, result.name, view);
  to = bind_rows(p, result.name, view,
                 result.axes == ResultAxes::kKeys ? Along::kKeys : Along::kQueries);
}

// Binds the list column_sums.rows, which restricts all results by key.
void bind_column_rows(const Problem& p, const ConstView& rows, core::ColumnSumsResult& to) {
  if (!rows.given()) return;
  if (!to.given()) {
    std::string others;
    for_each_result([&](const auto& result) {
      if (result.axes == ResultAxes::kKeys && result.name != "column_sums") {
        others += text(" as ", result.name, " is,");
      }
    });
    throw Error(p.function, "column_sums",
                text("is absent,", others, " but column_sums.rows is given"));
  }
  if (p.packed()) {
    throw Error(p.function, "column_sums.rows",
                "is not available with packed sequences (cu_seqlens)");
  }
  to.indices = bind_indices(p, "column_sums.rows", rows);
  to.count = rows.size(0);
  check_listed_rows(p, "column_sums.rows", rows);
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

// Binds the results in the order of qkv::kResults. Absent results are skipped early: most are
// absent, and small calls spend their time here.
class OutputBinder {
 public:
  OutputBinder(const Problem& p, const Outputs& outputs, Results& to)
      : p_(p), outputs_(outputs), to_(to) {}

  void operator()(const Result<View>& result, core::ResultOperand& to) const {
    const View& view = outputs_.*result.member;
    if (result.axes == ResultAxes::kValues) {
      to = bind_out(p_, result.name, view);
    } else if (result.axes == ResultAxes::kQueries) {
      bind_numbers(p_, result, view, to);
    }  // results by key are bound with column_sums
  }
  void operator()(const Result<View>& result, core::PooledResult& to) const {
    const View& view = outputs_.*result.member;
    if (view.given()) to = bind_pooled(p_, view);
  }
  // Binds all results by key together: they share the list of queries, which is checked last.
  void operator()(const Result<ColumnSums>& result, core::ColumnSumsResult& to) const {
    const ColumnSums& columns = outputs_.*result.member;
    bind_numbers(p_, {result.name, nullptr, result.axes, result.calls}, columns.sums, to.sums);
    core::for_each_result(to_, [&](const auto& other, auto& place) {
      if constexpr (std::is_same_v<decltype(place), core::ResultOperand&>) {
        if (other.axes == ResultAxes::kKeys) {
          bind_numbers(p_, other, outputs_.*other.member, place);
        }
      }
    });
    bind_column_rows(p_, columns.rows, to);
  }
  void operator()(const Result<Top>& result, core::TopResult& to) const {
    bind_top(p_, outputs_.*result.member, to);
  }
  void operator()(const Result<Rows>& result, core::RowsResult& to) const {
    const Rows& rows = outputs_.*result.member;
    if (!rows.matrix.given() && !rows.rows.given()) return;
    to = bind_matrix(p_, result.name, core::ParameterName(result.name, "rows"), rows);
  }

 private:
  const Problem& p_;
  const Outputs& outputs_;
  Results& to_;
};

bool is_requested(const Outputs& outputs, std::string_view name) {
  bool requested = false;
  for_each_buffer(outputs, [&](std::string_view buffer, const View& view) {
    const bool is_buffer_of = buffer == name || buffer.substr(0, buffer.find('.')) == name;
    requested = requested || (view.given() && is_buffer_of);
  });
  return requested;
}

bool asks_for_nothing(const Outputs& outputs) {
  bool any = false;
  for_each_buffer(outputs,
                  [&](std::string_view, const View& buffer) { any = any || buffer.given(); });
  return !any;
}

}  // namespace

core::Results bind_outputs(const Problem& p, const Outputs& outputs) {
  Results to;
  core::for_each_result(to, OutputBinder(p, outputs, to));
  if (asks_for_nothing(outputs)) {
    throw Error(p.function, "outputs", "name no buffer, so there is nothing to compute");
  }
  return to;
}

core::Results bind_step(const Problem& p, const AttentionState& state, const Outputs& outputs) {
  if (p.packed() || p.paged()) {
    throw Error(p.function, p.packed() ? "cu_seqlens_q" : "block_tables",
                "is given, but the state is of sequences of one length");
  }
  if (p.first_key() % kShardKeys != 0) {
    throw Error(
        p.function, "shard",
        text("must have a first_key that is a multiple of ", kShardKeys, ", got ", p.first_key()));
  }
  Results to;
  const auto bind_numbers_of = [&](const char* name, const View& view) {
    if (!view.given()) throw Error(p.function, name, "is absent but each step reads and writes it");
    expect_accumulator(p, name, view);
    return bind_rows(p, name, view, Along::kQueries);
  };
  to.state.max = bind_numbers_of("state.max", state.max);
  to.state.sum = bind_numbers_of("state.sum", state.sum);
  if (state.acc.given() != (p.E > 0)) {
    throw Error(p.function, "state.acc",
                state.acc.given() ? "is given but v is absent" : "is absent but v is given");
  }
  if (state.acc.given()) {
    expect_accumulator(p, "state.acc", state.acc);
    expect_shape(p, "state.acc", state.acc, result_shape(p, {p.Tq, p.E}), "Tq,E");
    to.state.acc = to_operand(p, state.acc, state.acc.strides(), 2);
  }
  core::for_each_result(to, [&](const auto& result, auto& place) {
    OutputBinder(p, outputs, to)(result, place);
    const bool in_steps =
        result.axes == ResultAxes::kValues || result.name == "lse" || result.name == "row_max";
    if (in_steps || !is_requested(outputs, result.name)) return;
    throw Error(p.function, result.name,
                "is not available in steps, which give out, lse and row_max");
  });
  return to;
}

namespace {

void expect_float64(const Problem& p, const char* name, const ConstView& x) {
  if (x.dtype() == DType::kFloat64) return;
  throw Error(p.function, name, text("must be float64, got ", describe(x)), ErrorKind::kType);
}

}  // namespace

core::GradientSources bind_lse(const Problem& p, const ConstView& lse) {
  if (!lse.given()) throw Error(p.function, "lse", "is absent");
  check_plain_products(p);
  expect_accumulator(p, "lse", lse);
  core::GradientSources from;
  from.lse = bind_rows(p, "lse", lse, Along::kQueries);
  return from;
}

core::Operand bind_known_weight_sums(const Problem& p, const ConstView& sums) {
  if (!sums.given()) return {};
  expect_float64(p, "saved.weight_sums", sums);
  return bind_rows(p, "saved.weight_sums", sums, Along::kQueries);
}

core::GradientResults bind_weight_sums(const Problem& p, const View& sums) {
  if (!sums.given()) throw Error(p.function, "sums", "is absent");
  expect_float64(p, "sums", sums);
  core::GradientResults to;
  to.weight_sums = bind_rows(p, "sums", sums, Along::kQueries);
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
  if (gradients.weights.matrix.given() && p.has_part_of_keys()) {
    throw Error(p.function, "output_gradients.weights",
                text("is not available for a part of the keys, got a shard of ", p.Tk, " of ",
                     p.shard->keys));
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
