// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_VALIDATE_SHAPES_H_
#define QKV_ATTENTION_VALIDATE_SHAPES_H_

#include <string>
#include <string_view>

#include <qkv/attention.h>

#include "core/problem.h"

// Alignment of the arrays of a call: axes, broadcasting, expected shapes.
namespace qkv::attn {

using core::Operand;
using core::Problem;
using core::ResultOperand;

// The shape of a result (not of packed sequences): batch axes, head axis, tail.
Dims result_shape(const Problem& p, const Dims& tail);

// The letters of a result's shape for the call's rank, such as "[B,H,Tq,E]".
std::string result_letters(const Problem& p, std::string_view tail);

// In the functions below `letters` are complete, such as "[H]", or a tail, such as "Tq,E", which
// result_letters completes when a message needs it.

// Returns the strides of `view` along the axes of `target`: 0 where the view has no axis, or one of
// size 1. Throws Error naming `argument` if the shape does not broadcast.
Dims broadcast_strides(const Problem& p, std::string_view argument, const ConstView& view,
                       const Dims& target, std::string_view letters);

// Splits strides along [batch..., head?, tail...] into an operand; the `tail` last axes become row
// and column (tail 2), or the row (tail 1).
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

// Makes an operand of a view without batch axes, with the strides as given.
template <class Void>
core::BasicOperand<Void> plain_operand(const Problem& p, const BasicView<Void>& view, Index head,
                                       Index row, Index col) {
  core::BasicOperand<Void> x{view.data(), view.dtype(), {}, head, row, col};
  for (int axis = 0; axis < p.batch.rank(); ++axis) x.batch_strides.push_back(0);
  return x;
}

// Makes the operand of a required parameter of shape `sizes` (-1: any), or [heads, sizes...]. The
// last axis of `sizes` becomes the column, and an axis before it the row. In messages `letters`
// stand for the axes of `sizes`, and `head_letter` for the heads. Throws Error if the parameter is
// absent or has another shape.
Operand parameter_operand(const Problem& p, std::string_view name, const ConstView& x,
                          const Dims& sizes, const char* letters, Index heads,
                          const char* head_letter = "H");

// The width of rows of q, k or v in numbers; a q8 block has 32.
Index width_of(const Problem& p, std::string_view argument, const ConstView& view);

// Converts the strides of k or v from elements to numbers: a q8 block, one element, has 32 numbers.
// Operands of other dtypes are returned unchanged.
Operand in_numbers(Operand x);

// Throws Error unless the view's shape is the expected one.
void expect_shape(const Problem& p, std::string_view argument, const ConstView& view,
                  const Dims& expected, std::string_view letters);

// Throws Error (kType) unless the view's dtype is the expected one, which follows from `model`'s.
void expect_dtype(const Problem& p, std::string_view argument, const ConstView& view,
                  DType expected, std::string_view model_name, DType model);

// Throws Error (kType) unless the view has q's dtype or the accumulator's.
void expect_real(const Problem& p, std::string_view argument, const ConstView& view);

// Throws Error (kType) unless the view's dtype is an integer type or, with `or_bool`, bool.
void expect_integer(const Problem& p, std::string_view argument, const ConstView& view,
                    bool or_bool = false);

// Throws Error unless both views are given; the message says that `who` need both.
void expect_both(const Problem& p, const char* a_name, const ConstView& a, const char* b_name,
                 const ConstView& b, const char* who);

// Throws Error for an argument that is not accepted where arrays lie in device memory.
[[noreturn]] void refuse_on_device(const Problem& p, std::string_view argument);

// Return an element of an integer array as a number and as text. A uint64 that is too large for
// Index becomes the largest Index, which every rule rejects; the text shows the original.
Index integer_at(const ConstView& view, Index offset);
std::string integer_text(const ConstView& view, Index offset);

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_VALIDATE_SHAPES_H_
