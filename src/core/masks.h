// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_MASKS_H_
#define QKV_CORE_MASKS_H_

#include <algorithm>
#include <concepts>
#include <vector>

#include "core/instances.h"
#include "core/prefetch.h"
#include "core/problem.h"
#include "core/tile_classes.h"

// The query-key pairs that each mask of the list ResolvedMask allows. There are two kinds of masks:
//   interval masks      let a query attend to a contiguous range of keys. They have
//                       allows(mask, p, at, j) and keys(mask, at, Tk)
//   element-wise masks  (AskedMask) are evaluated for each pair. They have
//                       allows(mask, p, at, j); optionally, a faster
//                       ask(mask, p, at, j0, n, target, allowed) for n keys, and, if whole tiles
//                       are known in advance, tile_class(mask, at, tile_i, tile_j)
// A user's mask is of both kinds: keys() is a range that contains the allowed keys, and the pairs
// are evaluated unless all keys of the range are known to be allowed.
// `allows` is the definition, used by the reference. A mask without it does not compile.
namespace qkv::core {

// One query of one head: all that a mask reads of it.
struct QueryAt {
  Index b = 0;
  Index h = 0;
  Index i = 0;
  Index o = 0;  // the diagonal: j = i + o
};

// The keys begin .. end-1.
struct KeyRange {
  Index begin = 0;
  Index end = 0;
  bool empty() const noexcept { return begin >= end; }
  Index size() const noexcept { return empty() ? 0 : end - begin; }
};

// True if the element is not zero. A bool is read as a byte, because the caller's memory may hold
// bytes other than 0 and 1.
inline bool is_set(const Operand& x, Index offset) noexcept {
  if (x.dtype == DType::kBool) return static_cast<const unsigned char*>(x.data)[offset] != 0;
  return load<Index>(x.dtype, x.data, offset) != 0;
}

// The place of a pair as user functions get it: positions in the whole sequences.
inline At place_of(const Problem& p, const QueryAt& at, Index j) {
  return {static_cast<std::int32_t>(at.b), static_cast<std::int32_t>(p.head_number(at.h)),
          static_cast<std::int32_t>(at.i + p.first_query()),
          static_cast<std::int32_t>(j + p.first_key())};
}

// A number larger than any size, yet small enough that the sum of three such numbers does not
// overflow.
inline constexpr Index kFar = Index{1} << 60;
inline Index diagonal_of(const QueryAt& at) { return at.i + std::clamp(at.o, -kFar, kFar); }

// ---- causal: j <= i + o ---------------------------------------------------------------------

inline bool allows(const CausalMask&, const Problem&, const QueryAt& at, Index j) {
  return j <= at.i + at.o;
}
inline KeyRange keys(const CausalMask&, const QueryAt& at, Index Tk) {
  return {0, std::min(Tk, diagonal_of(at) + 1)};
}

// ---- window: i + o - left <= j <= i + o + right ---------------------------------------------

inline bool allows(const WindowMask& mask, const Problem&, const QueryAt& at, Index j) {
  return (mask.window.left < 0 || j >= at.i + at.o - mask.window.left) &&
         (mask.window.right < 0 || j <= at.i + at.o + mask.window.right);
}
inline KeyRange keys(const WindowMask& mask, const QueryAt& at, Index Tk) {
  const Index left = mask.window.left;
  const Index right = mask.window.right;
  return {left < 0 ? 0 : diagonal_of(at) - std::min(left, kFar),
          right < 0 ? Tk : diagonal_of(at) + std::min(right, kFar) + 1};
}

// ---- lengths --------------------------------------------------------------------------------

// The mask's length, counted from key 0 of the call; negative if it ends before that key.
inline Index length_of(const LengthMask& mask, const QueryAt& at) {
  const Index offset = at.b * mask.entry_stride + at.i * mask.lengths.row_stride;
  return load<Index>(mask.lengths.dtype, mask.lengths.data, offset) - mask.first_key;
}
inline bool allows(const LengthMask& mask, const Problem&, const QueryAt& at, Index j) {
  return j < length_of(mask, at);
}
inline KeyRange keys(const LengthMask& mask, const QueryAt& at, Index) {
  return {0, length_of(mask, at)};
}

// ---- keep, padding --------------------------------------------------------------------------

// Clears allowed[c], for each c < n, unless is_set(x, element of key c) equals `wanted`. The
// elements of x are bools or integers.
inline void ask_array(const Operand& x, Index offset, bool wanted, Index n, std::uint8_t* allowed) {
  const Index stride = x.col_stride;
  if ((x.dtype == DType::kBool || x.dtype == DType::kUInt8) && stride == 1) {
    const auto* from = static_cast<const std::uint8_t*>(x.data) + offset;
    for (Index c = 0; c < n; ++c) {
      allowed[c] = static_cast<std::uint8_t>(allowed[c] & ((from[c] != 0) == wanted));
    }
    return;
  }
  for (Index c = 0; c < n; ++c) {
    if (is_set(x, offset + c * stride) != wanted) allowed[c] = 0;
  }
}

inline Index place_in(const KeepMask& mask, const Problem& p, const QueryAt& at, Index j) {
  return offset_of(mask.keep, batch_offset(mask.keep, p.batch, at.b), at.h, at.i, j);
}
inline bool allows(const KeepMask& mask, const Problem& p, const QueryAt& at, Index j) {
  return is_set(mask.keep, place_in(mask, p, at, j));
}
inline void ask(const KeepMask& mask, const Problem& p, const QueryAt& at, Index j0, Index n,
                detail::InstanceTarget, std::uint8_t* allowed) {
  ask_array(mask.keep, place_in(mask, p, at, j0), true, n, allowed);
}

// Prefetches the cache line that holds the mask's element for key j.
inline void prefetch(const KeepMask& mask, const Problem& p, const QueryAt& at, Index j) {
  const auto* bytes = static_cast<const std::byte*>(mask.keep.data);
  prefetch(bytes + bytes_of(mask.keep.dtype, place_in(mask, p, at, j)));
}

inline Index place_in(const PaddingMask& mask, const QueryAt& at, Index j) {
  return at.b * mask.entry_stride + j * mask.padding.col_stride;
}
inline bool allows(const PaddingMask& mask, const Problem&, const QueryAt& at, Index j) {
  return !is_set(mask.padding, place_in(mask, at, j));
}
inline void ask(const PaddingMask& mask, const Problem&, const QueryAt& at, Index j0, Index n,
                detail::InstanceTarget, std::uint8_t* allowed) {
  ask_array(mask.padding, place_in(mask, at, j0), false, n, allowed);
}

// ---- a user's -------------------------------------------------------------------------------

// The lengths of a query's sequence.
inline detail::Lengths lengths_of(const Problem& p, const QueryAt& at) {
  const Sequence s = p.sequence(at.b);
  return {static_cast<std::int32_t>(p.whole_queries(s)),
          static_cast<std::int32_t>(p.whole_keys(s))};
}

// For each query, a range of keys that contains all keys that a mask allows.
struct RowRanges {
  // [entry][head][query][begin, end]. One entry (head) stands for all if its ranges hold for all.
  std::vector<std::int32_t> bounds{};
  std::vector<Index> first_queries{};  // [B + 1], queries before each entry; empty for one entry
  Index Tq = 0;                        // of one entry
  Index H = 1;
  bool exact = false;  // the mask allows all keys of the ranges

  KeyRange of(const QueryAt& at) const {
    Index before = 0;
    Index queries = Tq;
    if (!first_queries.empty()) {
      before = first_queries[static_cast<std::size_t>(at.b)];
      queries = first_queries[static_cast<std::size_t>(at.b) + 1] - before;
    }
    const Index row = before * H + (H == 1 ? 0 : at.h * queries) + at.i;
    const std::int32_t* const found = bounds.data() + 2 * row;
    return {found[0], found[1]};
  }
};

inline void ask_user(const MaskMod& mod, const Problem& p, const QueryAt& at, Index j0, Index n,
                     detail::InstanceTarget target, std::uint8_t* allowed) {
  instance_for(mod, target)
      .apply(mod.callable.get(),
             {place_of(p, at, j0), lengths_of(p, at), 1, static_cast<std::int32_t>(n), n, allowed});
}
inline bool allows(const UserMask& mask, const Problem& p, const QueryAt& at, Index j) {
  if (mask.mod == nullptr) {
    const KeyRange keys = mask.ranges->of(at);
    return keys.begin <= j && j < keys.end;
  }
  std::uint8_t allowed = 1;
  ask_user(*mask.mod, p, at, j, 1, detail::InstanceTarget::kBaseline, &allowed);
  return allowed != 0;
}
inline bool is_range(const UserMask& mask) {
  return mask.mod == nullptr || (mask.ranges != nullptr && mask.ranges->exact);
}
inline KeyRange keys(const UserMask& mask, const QueryAt& at, Index Tk) {
  return mask.ranges == nullptr ? KeyRange{0, Tk} : mask.ranges->of(at);
}
// If the classes of tiles are known, the user's function is called only in partial tiles.
inline void ask(const UserMask& mask, const Problem& p, const QueryAt& at, Index j0, Index n,
                detail::InstanceTarget target, std::uint8_t* allowed) {
  if (is_range(mask)) return;
  const MaskMod& mod = *mask.mod;
  if (mask.classes == nullptr) return ask_user(mod, p, at, j0, n, target, allowed);
  const Index tile_i = at.i / kTileSide;
  for (Index c = 0; c < n;) {
    const Index tile_j = (j0 + c) / kTileSide;
    const Index end = std::min(n, (tile_j + 1) * kTileSide - j0);
    const TileClass tile = mask.classes->of(at.b, at.h, tile_i, tile_j);
    if (tile == TileClass::kDead) std::fill(allowed + c, allowed + end, std::uint8_t{0});
    if (tile == TileClass::kPartial) ask_user(mod, p, at, j0 + c, end - c, target, allowed + c);
    c = end;
  }
}
inline TileClass tile_class(const UserMask& mask, const QueryAt& at, Index tile_i, Index tile_j) {
  if (is_range(mask)) return TileClass::kFull;
  if (mask.classes == nullptr) return TileClass::kPartial;
  return mask.classes->of(at.b, at.h, tile_i, tile_j);
}

// ---- the two kinds --------------------------------------------------------------------------

template <class M>
concept AnyMask = requires(const M& mask, const Problem& p, const QueryAt& at, Index j) {
  { allows(mask, p, at, j) } -> std::same_as<bool>;
};
template <class M>
concept IntervalMask = AnyMask<M> && requires(const M& mask, const QueryAt& at, Index Tk) {
  { keys(mask, at, Tk) } -> std::same_as<KeyRange>;
};
template <class M>
concept AskedMask =
    AnyMask<M> &&
    (!IntervalMask<M> || requires(const M& mask, const Problem& p, const QueryAt& at, Index j,
                                  detail::InstanceTarget target, std::uint8_t* allowed) {
      ask(mask, p, at, j, j, target, allowed);
    });

// Whether the mask allows all keys of its range.
inline bool is_interval(const ResolvedMask& mask) noexcept {
  return std::visit(
      []<AnyMask M>(const M& one) {
        if constexpr (requires { is_range(one); }) {
          return is_range(one);
        } else {
          return !AskedMask<M>;
        }
      },
      mask);
}

// The keys that all interval masks allow for a query.
inline KeyRange live_range(const Problem& p, const QueryAt& at, Index Tk) {
  KeyRange range{0, Tk};
  const auto narrow = [&]<AnyMask M>(const M& mask) {
    if constexpr (IntervalMask<M>) {
      const KeyRange one = keys(mask, at, Tk);
      range = {std::max(range.begin, one.begin), std::min(range.end, one.end)};
    }
  };
  for (const ResolvedMask& mask : p.masks) std::visit(narrow, mask);
  return range.empty() ? KeyRange{} : range;
}

// Sets allowed[c], for each c < n, to 1 if all element-wise masks allow key j0 + c, else to 0.
inline void find_allowed(const Problem& p, detail::InstanceTarget target, const QueryAt& at,
                         Index j0, Index n, std::uint8_t* allowed) {
  std::fill(allowed, allowed + n, std::uint8_t{1});
  const auto restrict_to = [&]<AnyMask M>(const M& mask) {
    if constexpr (!AskedMask<M>) {
      return;
    } else if constexpr (requires { ask(mask, p, at, j0, n, target, allowed); }) {
      ask(mask, p, at, j0, n, target, allowed);
    } else {
      for (Index c = 0; c < n; ++c) {
        if (!allows(mask, p, at, j0 + c)) allowed[c] = 0;
      }
    }
  };
  for (const ResolvedMask& mask : p.masks) std::visit(restrict_to, mask);
}

// Prefetches, for each mask that has prefetch(), the cache line that holds the query's element for
// key j. A line of bytes covers a panel of keys.
inline void prefetch_masks(const Problem& p, const QueryAt& at, Index j) {
  const auto ask_for = [&]<AnyMask M>(const M& mask) {
    if constexpr (requires { prefetch(mask, p, at, j); }) prefetch(mask, p, at, j);
  };
  for (const ResolvedMask& mask : p.masks) std::visit(ask_for, mask);
}

// The class of a query's row in one tile of keys, as far as it is known before masks are evaluated.
// Interval masks do not count, so kFull means that no element-wise mask forbids a key.
inline TileClass tile_class(const Problem& p, const QueryAt& at, Index tile_j) {
  const auto class_of = [&]<AnyMask M>(const M& mask) {
    if constexpr (requires { tile_class(mask, at, Index{}, Index{}); }) {
      return tile_class(mask, at, at.i / kTileSide, tile_j);
    } else {
      return AskedMask<M> ? TileClass::kPartial : TileClass::kFull;
    }
  };
  TileClass all = TileClass::kFull;
  for (const ResolvedMask& mask : p.masks) {
    const TileClass one = std::visit(class_of, mask);
    if (one == TileClass::kDead) return one;
    if (one == TileClass::kPartial) all = one;
  }
  return all;
}

}  // namespace qkv::core

#endif  // QKV_CORE_MASKS_H_
