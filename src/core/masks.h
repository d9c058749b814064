// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_MASKS_H_
#define QKV_CORE_MASKS_H_

#include "core/problem.h"

// What each built-in mask allows, pair by pair. A mask is added here and in the list ResolvedMask.
namespace qkv::core {

// One query of one head, with what every mask needs to know of it.
struct QueryAt {
  Index b = 0;
  Index h = 0;
  Index i = 0;
  Index o = 0;  // the diagonal: j = i + o
};

// Non-zero; a bool is read as its byte, which need not be 0 or 1 in foreign memory.
inline bool is_set(const Operand& x, Index offset) noexcept {
  if (x.dtype == DType::kBool) return static_cast<const unsigned char*>(x.data)[offset] != 0;
  return load<Index>(x.dtype, x.data, offset) != 0;
}

inline bool allows(const Causal&, const Problem&, const QueryAt& at, Index j) {
  return j <= at.i + at.o;
}

inline bool allows(const Window& window, const Problem&, const QueryAt& at, Index j) {
  return (window.left < 0 || j >= at.i + at.o - window.left) &&
         (window.right < 0 || j <= at.i + at.o + window.right);
}

inline bool allows(const KeepMask& mask, const Problem& p, const QueryAt& at, Index j) {
  const Index entry = batch_offset(mask.keep, p.batch, at.b);
  return is_set(mask.keep, offset_of(mask.keep, entry, at.h, at.i, j));
}

inline bool allows(const PaddingMask& mask, const Problem&, const QueryAt& at, Index j) {
  return !is_set(mask.padding, at.b * mask.entry_stride + j * mask.padding.col_stride);
}

inline bool allows(const LengthMask& mask, const Problem&, const QueryAt& at, Index j) {
  const Index offset = at.b * mask.entry_stride + at.i * mask.lengths.row_stride;
  return j < load<Index>(mask.lengths.dtype, mask.lengths.data, offset);
}

}  // namespace qkv::core

#endif  // QKV_CORE_MASKS_H_
