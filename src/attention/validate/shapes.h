// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_VALIDATE_SHAPES_H_
#define QKV_ATTENTION_VALIDATE_SHAPES_H_

#include <string>
#include <string_view>

#include <qkv/attention.h>

#include "core/problem.h"

// How the arrays of a call are aligned: axes, broadcasting, expected shapes.
namespace qkv::attn {

using core::Operand;
using core::Problem;
using core::ResultOperand;

// The shape of a result if not packed: batch axes, head axis, tail.
Dims result_shape(const Problem& p, const Dims& tail);

// "[B,H,Tq,E]" for the call's rank.
std::string result_letters(const Problem& p, std::string_view tail);

// In the functions below `letters` are complete, "[H]", or a tail, "Tq,E", which result_letters
// completes when a message needs it.

// Strides of `view` along the axes of `target` (rank of target): 0 where it has no axis, or size 1
// against a larger one. Throws Error naming `argument` if the shape does not broadcast.
Dims broadcast_strides(const Problem& p, std::string_view argument, const ConstView& view,
                       const Dims& target, std::string_view letters);

// Splits strides along [batch..., head?, tail...] into an operand; the `tail` last axes go to row
// and column (tail 2), or to the row (tail 1).
template <class Void>
core::BasicOperand<Void> to_operand(const Problem& p, const BasicView<Void>& view,
                                    const Dims& strides, int tail) {
  core::BasicOperand<Void> x;
  x.data = view.data();
  x.dtype = view.dtype();
  const int batch = p.batch.rank();
  for (int axis = 0; axis < batch; ++axis) x.batch_strides.push_back(strides[axis]);
  if (p.head_axis) x.head_stride = strides[batch];
  const int first = batch + (p.head_axis ? 1 : 0);
  x.row_stride = strides[first];
  if (tail == 2) x.col_stride = strides[first + 1];
  return x;
}

// An operand of views without batch axes: strides as given.
template <class Void>
core::BasicOperand<Void> plain_operand(const Problem& p, const BasicView<Void>& view, Index head,
                                       Index row, Index col) {
  core::BasicOperand<Void> x{view.data(), view.dtype(), {}, head, row, col};
  for (int axis = 0; axis < p.batch.rank(); ++axis) x.batch_strides.push_back(0);
  return x;
}

// For a required parameter of the shape `sizes` (-1: any), or one per head [heads, sizes...]; the
// letters are those of its own axes and of the heads. Rank 1 goes to the column, rank 2 to row and
// column. Throws Error if it is absent or has another shape.
Operand parameter_operand(const Problem& p, std::string_view name, const ConstView& x,
                          const Dims& sizes, const char* letters, Index heads,
                          const char* head_letter = "H");

// The width of rows of q, k or v: of q8, 32 for each block.
Index width_of(const Problem& p, std::string_view argument, const ConstView& view);

// The operand of an array of k or v, whose strides count elements: of q8, made to count numbers.
Operand in_numbers(Operand x);

// Throws Error unless the view's shape is the expected one.
void expect_shape(const Problem& p, std::string_view argument, const ConstView& view,
                  const Dims& expected, std::string_view letters);

// Throws Error (kType) unless the view's dtype is the expected one, which follows from `model`'s.
void expect_dtype(const Problem& p, std::string_view argument, const ConstView& view,
                  DType expected, std::string_view model_name, DType model);

// Throws Error (kType) unless the view has q's dtype or the accumulator's.
void expect_real(const Problem& p, std::string_view argument, const ConstView& view);

// Throws Error (kType) unless integer; with `or_bool` bool too.
void expect_integer(const Problem& p, std::string_view argument, const ConstView& view,
                    bool or_bool = false);

// Throws Error unless both are given; `who` needs both.
void expect_both(const Problem& p, const char* a_name, const ConstView& a, const char* b_name,
                 const ConstView& b, const char* who);

// An element of an integer array. A uint64 too large for Index becomes the largest Index, which
// every rule rejects; messages show the original.
Index integer_at(const ConstView& view, Index offset);
std::string integer_text(const ConstView& view, Index offset);

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_VALIDATE_SHAPES_H_
