// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_OPERAND_H_
#define QKV_CORE_OPERAND_H_

#include <qkv/dtype.h>
#include <qkv/view.h>

namespace qkv::core {

// An array in the form in which loops address it: [batch axes..., head, row, column]. A stride is 0
// along an axis that the array does not have or broadcasts along. Strides count numbers, for q8
// too, whose columns are contiguous. Rows are queries or keys, and columns are keys, channels or
// units, depending on the operand.
template <class Void>
struct BasicOperand {
  Void* data = nullptr;
  DType dtype = DType::kNone;
  Dims batch_strides;  // one per batch axis of the problem
  Index head_stride = 0;
  Index row_stride = 0;
  Index col_stride = 0;
  Index entry_stride = 0;  // along one axis that counts all batch entries or sequences
  Index page_rows = 0;     // for keys and values in pages: see core/head_rows.h
  Index page_stride = 0;

  bool given() const noexcept { return dtype != DType::kNone; }
  bool in_pages() const noexcept { return page_rows > 0; }
};
using Operand = BasicOperand<const void>;
using ResultOperand = BasicOperand<void>;

// The offset, in elements, of (h, row, col) in the batch entry at `batch_offset`.
template <class Void>
Index offset_of(const BasicOperand<Void>& x, Index batch_offset, Index h, Index row,
                Index col) noexcept {
  return batch_offset + h * x.head_stride + row * x.row_stride + col * x.col_stride;
}

// The offset of flat batch entry b, where b counts the batch axes in row-major order.
template <class Void>
Index batch_offset(const BasicOperand<Void>& x, const Dims& batch, Index b) noexcept {
  Index offset = b * x.entry_stride;
  for (int axis = batch.rank() - 1; axis >= 0; --axis) {
    const Index size = batch[axis];
    offset += (b % size) * x.batch_strides[axis];
    b /= size;
  }
  return offset;
}

}  // namespace qkv::core

#endif  // QKV_CORE_OPERAND_H_
