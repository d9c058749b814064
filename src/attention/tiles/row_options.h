// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_ROW_OPTIONS_H_
#define QKV_ATTENTION_TILES_ROW_OPTIONS_H_

#include <algorithm>
#include <limits>
#include <variant>

#include "core/instances.h"
#include "core/masks.h"
#include "core/prefetch.h"
#include "core/problem.h"
#include "core/tile_classes.h"
#include "kernels/dot_kernels.h"

// Functions for a row of scores between the product and the softmax, which all fused paths share:
// user functions, bias and ALiBi, and loads and stores of rows. Soft-cap, applied before them, is
// in kernels/dot_kernels.h; masks, applied after them, are in core/masks.h.
namespace qkv::attn {

using core::Operand;
using core::Problem;
using core::QueryAt;
using detail::InstanceTarget;

// Whether the kernels for T read rows of the operand in place, without a copy.
template <class T>
bool is_readable(const Operand& x) {
  return x.col_stride == 1 && kernels::is_read_in_place<T>(x.dtype);
}
inline kernels::StoredRows stored_rows(const Operand& x, Index offset) {
  return {static_cast<const std::byte*>(x.data) + core::bytes_of(x.dtype, offset), x.dtype,
          x.row_stride};
}

// Loads n elements of an operand, `stride` elements apart, and converts them to T.
template <class T>
void load_values(const Operand& x, Index offset, Index stride, Index n, T* to) {
  if (x.dtype == dtype_of<T> && stride == 1) {
    std::copy_n(static_cast<const T*>(x.data) + offset, n, to);
    return;
  }
  if (x.dtype == DType::kQ8) {
    for (Index c = 0; c < n; ++c) to[c] = core::load<T>(x.dtype, x.data, offset + c * stride);
    return;
  }
  core::visit_dtype(x.dtype, [&]<class Stored>(Stored*) {
    const Stored* from = static_cast<const Stored*>(x.data) + offset;
    if (stride == 1) {
      for (Index c = 0; c < n; ++c) to[c] = core::to_accumulator<T>(from[c]);
    } else {
      for (Index c = 0; c < n; ++c) to[c] = core::to_accumulator<T>(from[c * stride]);
    }
  });
}

// Stores n values of T to an operand, `col_stride` elements apart, each rounded once.
template <class T>
void store_values(const core::ResultOperand& to, Index offset, const T* x, Index n) {
  core::visit_dtype(to.dtype, [&]<class Stored>(Stored*) {
    Stored* first = static_cast<Stored*>(to.data) + offset;
    if (to.col_stride == 1) {
      for (Index c = 0; c < n; ++c) first[c] = core::from_accumulator<Stored>(x[c]);
    } else {
      for (Index c = 0; c < n; ++c) first[c * to.col_stride] = core::from_accumulator<Stored>(x[c]);
    }
  });
}

// The instances of user functions that match a target's kernels.
inline InstanceTarget instances_of(kernels::Target target) noexcept {
  switch (target) {
    case kernels::Target::kSse4:
    case kernels::Target::kNeon:
      return InstanceTarget::kBaseline;
    case kernels::Target::kAvx2:
      return InstanceTarget::kAvx2;
    case kernels::Target::kAmx:
    case kernels::Target::kEmulatedAmx:
    case kernels::Target::kAvx512Bf16:
    case kernels::Target::kAvx512:
      return InstanceTarget::kAvx512;
  }
  __builtin_unreachable();
}

// ---- masks ----------------------------------------------------------------------------------

using core::apply_instance;
using core::find_allowed;
using core::KeyRange;
using core::live_range;
using core::place_of;
using core::tile_class;

inline bool has_key_masks(const Problem& p) {
  return std::any_of(p.masks.begin(), p.masks.end(),
                     [](const auto& m) { return !core::is_interval(m); });
}

inline bool has_user_masks(const Problem& p) {
  return std::any_of(p.masks.begin(), p.masks.end(),
                     [](const auto& m) { return std::holds_alternative<core::UserMask>(m); });
}

// ---- scores ---------------------------------------------------------------------------------

inline Index bias_offset(const Problem& p, const QueryAt& at, Index j) {
  return core::offset_of(p.bias, core::batch_offset(p.bias, p.batch, at.b), at.h, at.i, j);
}

// Address of the bias from key j on if it is contiguous and stored as T; else null.
template <class T>
const T* bias_in_place(const Problem& p, const QueryAt& at, Index j) {
  if (p.bias.dtype != dtype_of<T> || p.bias.col_stride != 1) return nullptr;
  return static_cast<const T*>(p.bias.data) + bias_offset(p, at, j);
}

// Prefetches the bias of `count` keys from j on if it is contiguous. A bias is usually read only
// once, from main memory.
inline void prefetch_bias_row(const Problem& p, const QueryAt& at, Index j, Index count) {
  if (p.bias.col_stride != 1 || count <= 0) return;
  const auto* bytes = static_cast<const std::byte*>(p.bias.data) +
                      core::bytes_of(p.bias.dtype, bias_offset(p, at, j));
  for (Index n = 0; n < core::bytes_of(p.bias.dtype, count); n += 64) core::prefetch(bytes + n);
}

// The arguments of change_piece that are the same for all pieces of rows. `spare` is scratch
// memory with at least one element for each key of a piece.
template <class T>
struct PieceTools {
  const Problem& p;
  const kernels::DotKernels<T>& kernels;
  InstanceTarget target;
  T* spare;
};

// Applies user functions, bias and ALiBi to the scores s[0 .. n-1] of keys j0 .. j0+n-1. If
// `derivatives` is given, its n elements are multiplied by the derivatives of the user functions.
template <class T>
void change_piece(const PieceTools<T>& with, const QueryAt& at, Index j0, Index n, T* s,
                  T* derivatives = nullptr) {
  const Problem& p = with.p;
  for (const ScoreMod& mod : p.mods) {
    apply_instance<T>(core::instance_for(mod, with.target), mod.callable.get(),
                      {place_of(p, at, j0), core::lengths_of(p, at), 1,
                       static_cast<std::int32_t>(n), n, s, derivatives});
  }
  const T* bias = with.spare;
  if (p.bias.given()) {
    if (const T* there = bias_in_place<T>(p, at, j0)) {
      bias = there;
    } else {
      load_values(p.bias, bias_offset(p, at, j0), p.bias.col_stride, n, with.spare);
    }
    with.kernels.add_bias(s, bias, n);
  }
  if (!p.alibi.given()) return;
  const Index entry = core::batch_offset(p.alibi, p.batch, at.b);
  const T slope =
      core::load<T>(p.alibi.dtype, p.alibi.data, core::offset_of(p.alibi, entry, at.h, 0, 0));
  with.kernels.subtract_distance(s, slope, j0 - at.i - at.o, n);
  if (!p.bias.given()) return;
  // A bias of -inf masks its pair. An ALiBi slope that is NaN or infinite may have made the score
  // of such a pair NaN, so it is set to -inf again.
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  for (Index c = 0; c < n; ++c) s[c] = bias[c] == kMasked ? kMasked : s[c];
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_ROW_OPTIONS_H_
