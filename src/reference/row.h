// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_ROW_H_
#define QKV_REFERENCE_ROW_H_

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "core/bfloat16_products.h"
#include "core/masks.h"
#include "core/order.h"
#include "reference/prepared.h"

// The scores of one query, in the one order in which options act:
//   score -> scale -> soft-cap -> user's functions -> + bias, + ALiBi -> masks
namespace qkv::reference {

using core::QueryAt;

// The scores of keys begin .. begin+count-1 of one query; index n is key begin + n.
template <class T>
struct Row {
  Index begin = 0;
  Index count = 0;
  T* raw = nullptr;              // after scale
  T* capped = nullptr;           // after soft-cap
  T* s = nullptr;                // after user functions, bias and ALiBi
  T* slope = nullptr;            // the derivative d s / d (score before scale)
  std::uint8_t* live = nullptr;  // 1 if unmasked, else 0

  template <class AnyArena>
  static Row take(AnyArena& arena, Index keys) {
    Row row;
    row.raw = arena.template take<T>(keys).data();
    row.capped = arena.template take<T>(keys).data();
    row.s = arena.template take<T>(keys).data();
    row.slope = arena.template take<T>(keys).data();
    row.live = arena.template take<std::uint8_t>(keys).data();
    return row;
  }
};

// Computes sum_u v_u tanh(a_u + b_u), in chunks of kUnitChunk units, each summed from zero.
template <class T>
T additive_score(const T* a, const T* b, const T* v, Index units) {
  T total(0);
  for (Index u0 = 0; u0 < units; u0 += core::kUnitChunk) {
    T sum(0);
    const Index end = std::min(units, u0 + core::kUnitChunk);
    for (Index u = u0; u < end; ++u)
      sum = fused_multiply_add(v[u], reference::tanh(a[u] + b[u]), sum);
    total += sum;
  }
  return total;
}

// Computes sum_c a_c b_c with the products of the call.
template <class T>
T dot_of(const Prepared<T>& x, const T* a, const T* b, Index n) {
  if constexpr (std::is_same_v<T, float>) {
    switch (x.products) {
      case core::Products::kPlain:
        break;
      case core::Products::kDot2:
        return core::dot2(a, b, n);
      case core::Products::kAmx:
        return core::amx_dot(a, b, n);
    }
  }
  return dot(a, b, n);
}

// Computes raw_j = scale * score(i, j), and its slope.
template <class T>
void raw_scores(const Problem& p, const Prepared<T>& x, const QueryAt& at, const Row<T>& row) {
  const Index width = score_width(p);
  const T* left = x.left_of(p, at.b, at.h) + at.i * width;
  const T* right = x.right_of(p, at.b, at.h) + row.begin * width;
  const RealOf<T> scale = static_cast<RealOf<T>>(p.scale);
  for (Index n = 0; n < row.count; ++n, right += width) {
    x.stop();
    T score(0);
    switch (p.product) {
      case PairProduct::kDot:
        score = dot_of(x, left, right, width);
        break;
      case PairProduct::kTanh:
        score = additive_score(left, right, x.score_v.of(0, at.h, 0), width);
        break;
    }
    row.raw[n] = score * scale;
    row.slope[n] = T(scale);
  }
}

// Computes capped = cap * tanh(raw / cap), and multiplies the slope by the derivative.
template <class T>
void soft_cap(const Problem& p, const Row<T>& row) {
  const RealOf<T> cap = static_cast<RealOf<T>>(p.softcap);
  for (Index n = 0; n < row.count; ++n) {
    row.capped[n] = row.raw[n];
    if (cap == 0) continue;
    const detail::Capped<T> c = detail::capped(row.raw[n], cap);
    row.capped[n] = c.value;
    row.slope[n] *= RealOf<T>(1) - c.tanh * c.tanh;
  }
}

template <class T>
void apply_baseline(const ScoreMod& mod, const detail::ScoreTile<T>& tile) {
  if constexpr (core::kIsComplex<T>) {
    mod.complex128(mod.callable.get(), tile);
  } else {
    core::apply_instance<T>(mod.instances[0], mod.callable.get(), tile);
  }
}

template <class T>
void user_scores(const Problem& p, const QueryAt& at, const Row<T>& row, bool with_slope) {
  std::copy(row.capped, row.capped + row.count, row.s);
  for (const ScoreMod& mod : p.mods) {
    apply_baseline<T>(mod, {core::place_of(p, at, row.begin), core::lengths_of(p, at), 1,
                            static_cast<std::int32_t>(row.count), row.count, row.s,
                            with_slope ? row.slope : nullptr});
  }
}

// Computes s_j + bias_j - slope_h |i + o - j|.
template <class T>
void add_bias(const Problem& p, const QueryAt& at, const Row<T>& row) {
  if (p.bias.given()) {
    for (Index n = 0; n < row.count; ++n) {
      row.s[n] += element<T>(p, p.bias, at.b, at.h, at.i, row.begin + n);
    }
  }
  if (p.alibi.given()) {
    const T slope = element<T>(p, p.alibi, at.b, at.h, 0, 0);
    for (Index n = 0; n < row.count; ++n) {
      const Index distance = std::abs(at.i + at.o - (row.begin + n));
      row.s[n] -= slope * static_cast<RealOf<T>>(distance);
    }
  }
}

template <core::AnyMask Mask>
void restrict_to(const Mask& mask, const Problem& p, const QueryAt& at, Index begin, Index count,
                 std::uint8_t* live) {
  for (Index n = 0; n < count; ++n) {
    if (!core::allows(mask, p, at, begin + n)) live[n] = 0;
  }
}

// Computes the flags of unmasked ("live") pairs: every mask allows the pair, and neither its bias
// nor its score is -inf.
template <class T>
void find_live(const Problem& p, const QueryAt& at, const Row<T>& row) {
  for (Index n = 0; n < row.count; ++n) {
    const bool masked_by_bias =
        p.bias.given() &&
        real_part(element<T>(p, p.bias, at.b, at.h, at.i, row.begin + n)) == -kInfinity<T>;
    row.live[n] = !masked_by_bias && real_part(row.s[n]) != -kInfinity<T>;
  }
  for (const core::ResolvedMask& mask : p.masks) {
    std::visit([&](const auto& m) { restrict_to(m, p, at, row.begin, row.count, row.live); }, mask);
  }
}

// Computes the scores and flags of keys begin .. begin+count-1. The slope includes the derivatives
// of user functions only if `with_slope`.
template <class T>
void score_row(const Problem& p, const Prepared<T>& x, const QueryAt& at, Index begin, Index count,
               bool with_slope, Row<T>& row) {
  row.begin = begin;
  row.count = count;
  raw_scores(p, x, at, row);
  soft_cap(p, row);
  user_scores(p, at, row, with_slope);
  add_bias(p, at, row);
  find_live(p, at, row);
}

// Writes 0 for dropped keys, else 1, for keys begin .. begin+count-1 of the row: the factors z_j
// without their division by 1-p.
inline void dropout_row(const Problem& p, const QueryAt& at, Index begin, Index count,
                        std::uint8_t* kept) {
  if (p.dropout == 0) {
    std::fill(kept, kept + count, std::uint8_t{1});
    return;
  }
  for (Index n = 0; n < count;) {
    const Index j = begin + n + p.first_key();
    const auto group =
        p.dropout_mask.kept(at.b, p.head_number(at.h), at.i + p.first_query(), j / 4);
    for (Index word = j % 4; word < 4 && n < count; ++word, ++n) {
      kept[n] = group[static_cast<std::size_t>(word)];
    }
  }
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_ROW_H_
