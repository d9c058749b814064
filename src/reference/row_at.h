// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_ROW_AT_H_
#define QKV_REFERENCE_ROW_AT_H_

#include "core/operand.h"
#include "core/storage.h"

namespace qkv::reference {

using core::Operand;

// The row of q or k to which a transform is applied.
template <class T>
struct RowAt {
  Index b = 0;      // batch entry, or sequence
  Index head = 0;   // of q or k
  Index row = 0;    // row of the array; for packed sequences counted over all sequences
  Index place = 0;  // position on the diagonal's axis: i + o of a query, j of a key
  // The cos and sin of the row's angles, pair by pair, if a path has computed them already; else
  // null.
  const T* angles = nullptr;
};

// Loads an element of a parameter, which has no batch axes.
template <class T>
T parameter(const Operand& x, Index h, Index row, Index col) {
  return core::load<T>(x.dtype, x.data, core::offset_of(x, 0, h, row, col));
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_ROW_AT_H_
