// SPDX-License-Identifier: Apache-2.0
// batch_dot: checks its arguments, then divides out into blocks for the workers of a context.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <qkv/error.h>
#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "core/integers.h"
#include "core/shapes.h"
#include "dense/array_arguments.h"
#include "dense/matrix_product.h"
#include "dense/rows.h"
#include "dense/target_in_use.h"
#include "reference/matmul.h"
#include "runtime/tasks.h"

namespace qkv::dense {
namespace {

using runtime::Arena;
using runtime::Call;

constexpr std::string_view kBatchDot = "batch_dot";

// ---- checks ---------------------------------------------------------------------------------

void check_factors(const ConstView& a, const ConstView& b, const ConstView& out) {
  const std::array<std::pair<std::string_view, const ConstView*>, 3> arrays{
      {{"a", &a}, {"b", &b}, {"out", &out}}};
  for (const auto& [name, array] : arrays) require_given(kBatchDot, name, *array);
  for (const auto& [name, array] : arrays) {
    if (array->rank() >= 2) continue;
    throw Error(kBatchDot, name, "must have at least two axes, got " + describe(*array));
  }
  require_real(kBatchDot, "a", a);
  require_dtype(kBatchDot, "b", b, "a", a);
  require_dtype(kBatchDot, "out", out, "a", a);
}

// Checks the shapes of a [..,N,L] and b [..,L,M], which are already transposed as requested.
// Returns the leading axes of out.
Dims check_product(const ConstView& a, const ConstView& b, const ConstView& out) {
  const std::string came = " (after transposing: a " + describe(a) + ", b " + describe(b) + ")";
  if (a.size(-1) != b.size(-2)) {
    throw Error(kBatchDot, "b",
                "has L = " + std::to_string(b.size(-2)) +
                    " but a has L = " + std::to_string(a.size(-1)) + came);
  }
  const auto lead = core::broadcast_shapes(leading(a.shape(), 2), leading(b.shape(), 2));
  if (!lead) {
    throw Error(kBatchDot, "b", "has leading axes that do not broadcast with those of a" + came);
  }
  Dims shape = *lead;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  require_shape(kBatchDot, out, shape);
  return *lead;
}

// Broadcasts the leading axes of the view; the last two are unchanged.
ConstView spread(const ConstView& view, const Dims& lead) {
  if (leading(view.shape(), 2) == lead) return view;
  Dims shape = lead;
  shape.push_back(view.size(-2));
  shape.push_back(view.size(-1));
  return broadcast_to(view, shape);
}

// ---- blocks ---------------------------------------------------------------------------------

constexpr Index kMostRows = 384;     // of a block: enough for copies to cost little
constexpr Index kLeastRows = 48;     // of a block: eight tiles, which are worth a copied panel
constexpr Index kMostColumns = 256;  // of a block: four panels
constexpr Index kLeastColumns = 64;  // of a block: one panel
// The least multiply-adds of a task: ten microseconds or more, enough to be worth waking a worker.
constexpr double kLeastWork = 1 << 19;

// Products [N,L] [L,M], one for each index of the leading axes, split into blocks of out.
struct Blocks {
  Dims lead;
  Index batch = 1;
  Index N = 0;
  Index L = 0;
  Index M = 0;
  Index rows = 0;     // of a block
  Index columns = 0;  // of a block

  Blocks(const Dims& leading_axes, Index n, Index l, Index m, Index workers)
      : lead(leading_axes), N(n), L(l), M(m) {
    for (int axis = 0; axis < lead.rank(); ++axis) batch *= lead[axis];
    rows = kMostRows;
    columns = kMostColumns;
    if (workers > 1) {
      while (rows > kLeastRows && count() < 4 * workers) rows /= 2;
      while (columns > kLeastColumns && count() < 2 * workers) columns /= 2;
    }
    rows =
        core::divide_up(core::divide_up(N, row_blocks()), kernels::kTileRows) * kernels::kTileRows;
    rows = std::min(rows, N);
    columns = std::min(columns, M);
  }
  Index row_blocks() const { return core::divide_up(N, rows); }
  Index column_blocks() const { return core::divide_up(M, columns); }
  Index count() const { return batch * row_blocks() * column_blocks(); }
  Index blocks_per_task() const {
    const double work = static_cast<double>(rows) * static_cast<double>(columns) *
                        static_cast<double>(std::max<Index>(L, 1));
    if (work >= kLeastWork) return 1;
    return std::min(count(), static_cast<Index>(kLeastWork / work) + 1);
  }
};

// The three arrays, each with the leading axes blocks.lead.
template <class Stored>
struct Operands {
  const Blocks& blocks;
  const ConstView& a;
  const ConstView& b;
  const View& out;

  // The product of one block. Blocks of the same columns are consecutive.
  MatrixProduct<Stored> block(Index index) const {
    const Index n = index % blocks.row_blocks() * blocks.rows;
    index /= blocks.row_blocks();
    const Index m = index % blocks.column_blocks() * blocks.columns;
    index /= blocks.column_blocks();
    MatrixProduct<Stored> p;
    p.rows = std::min(blocks.rows, blocks.N - n);
    p.inner = blocks.L;
    p.columns = std::min(blocks.columns, blocks.M - m);
    p.a = part<const Stored>(a, index, n, 0);
    p.b = part<const Stored>(b, index, 0, m);
    p.out = part<Stored>(out, index, n, m);
    return p;
  }

 private:
  // The part that starts at (row, column) of a batch entry's matrix. For factors without elements
  // (L = 0), whose pointers may be null, the part has a null pointer.
  template <class Element, class AnyView>
  Matrix<Element> part(const AnyView& view, Index entry, Index row, Index column) const {
    if (blocks.L == 0 && std::is_const_v<Element>) return {nullptr, 0, 0};
    Index offset = row * view.stride(-2) + column * view.stride(-1);
    for (int axis = blocks.lead.rank() - 1; axis >= 0; --axis) {
      offset += entry % blocks.lead[axis] * view.stride(axis);
      entry /= blocks.lead[axis];
    }
    return {view.template as<Stored>() + offset, view.stride(-2), view.stride(-1)};
  }
};

// If all entries share one b, merges their rows of a and out into one product, provided that tiles
// can use the rows in place (Rows::even()).
template <class Stored>
void fold(ConstView& a, ConstView& b, View& out) {
  for (int axis = 0; axis < b.rank() - 2; ++axis) {
    if (b.size(axis) > 1 && b.stride(axis) != 0) return;
  }
  const Rows<const Stored> a_rows(a);
  const Rows<Stored> out_rows(out);
  if (!a_rows.even() || !out_rows.even()) return;
  const auto folded = [](const auto& view, const auto& rows) {
    return Dims{rows.from(0).stride, view.stride(-1)};
  };
  a = {a.data(), a.dtype(), {a_rows.count(), a.size(-1)}, folded(a, a_rows)};
  out = {out.data(), out.dtype(), {out_rows.count(), out.size(-1)}, folded(out, out_rows)};
  b = {b.data(), b.dtype(), {b.size(-2), b.size(-1)}, {b.stride(-2), b.stride(-1)}};
}

// Computes the product after all checks. a and b have the leading axes of out, which has elements.
template <class Stored>
void run_batch_dot(ConstView a, ConstView b, View out, Context& context) {
  using T = SumOf<Stored>;
  if (out.rank() > 2) fold<Stored>(a, b, out);
  const Kernels<T> by = kernels_in_use<T>(context, kBatchDot);
  const Blocks blocks(leading(out.shape(), 2), out.size(-2), a.size(-1), out.size(-1),
                      context.executor().concurrency());
  const Operands<Stored> operands{blocks, a, b, out};
  const Index scratch = by.given() ? operands.block(0).scratch() : 0;  // no block is larger
  const Index each = blocks.blocks_per_task();
  Call call(context, kBatchDot, 0, Arena::cost<T>(scratch));
  const core::StopPoint stop = call.stop_point();
  call.for_each_task(core::divide_up(blocks.count(), each), [&](Index task, Arena& arena) {
    T* const own = arena.take<T>(scratch).data();
    const Index end = std::min(blocks.count(), (task + 1) * each);
    for (Index index = task * each; index < end; ++index) {
      const MatrixProduct<Stored> block = operands.block(index);
      if (by.given()) {
        block.run(by, own, stop);
      } else {
        reference::matmul<T, Stored>(block.rows, block.columns, block.inner, block.a, block.b,
                                     block.out, stop);
      }
    }
  });
}

void checked_batch_dot(const ConstView& a, const ConstView& b, const View& out,
                       Transpose transpose_a, Transpose transpose_b, Context& context) {
  check_factors(a, b, out);
  const ConstView left = transpose_a == Transpose::kYes ? transpose(a, -2, -1) : a;
  const ConstView right = transpose_b == Transpose::kYes ? transpose(b, -2, -1) : b;
  const Dims lead = check_product(left, right, out);
  require_apart(kBatchDot, out, "a", a);
  require_apart(kBatchDot, out, "b", b);
  require_distinct_elements(kBatchDot, out);
  if (out.element_count() == 0) return;
  visit_real(a.dtype(), [&]<class Stored>(Stored*) {
    run_batch_dot<Stored>(spread(left, lead), spread(right, lead), out, context);
  });
}

}  // namespace
}  // namespace qkv::dense

namespace qkv {

void batch_dot(const ConstView& a, const ConstView& b, const View& out, Transpose transpose_a,
               Transpose transpose_b) {
  Context context;
  dense::checked_batch_dot(a, b, out, transpose_a, transpose_b, context);
}

void batch_dot(const ConstView& a, const ConstView& b, const View& out, Transpose transpose_a,
               Transpose transpose_b, Context& context) {
  dense::checked_batch_dot(a, b, out, transpose_a, transpose_b, context);
}

}  // namespace qkv
