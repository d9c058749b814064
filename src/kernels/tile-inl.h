// SPDX-License-Identifier: Apache-2.0
// The two products of attention as register tiles, and the packing of keys, for each CPU target.
#if defined(QKV_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_TILE_INL_H_
#undef QKV_KERNELS_TILE_INL_H_
#else
#define QKV_KERNELS_TILE_INL_H_
#endif

#include <algorithm>

#include <hwy/highway.h>

#include "kernels/dot_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Registers per row of a tile.
inline constexpr int kTileVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// ---- panels ---------------------------------------------------------------------------------

// 16 bytes of each of n rows, packed in one register: block m from rows + m * step.
template <class T, int kBytes>
HWY_INLINE hn::Vec<hn::CappedTag<T, kBytes / sizeof(T)>> gather_blocks(const T* from, Index step) {
  const hn::CappedTag<T, kBytes / sizeof(T)> d;
  if constexpr (kBytes == 16) {
    return hn::LoadU(d, from);
  } else {
    constexpr Index kHalf = kBytes / 32;
    return hn::Combine(d, gather_blocks<T, kBytes / 2>(from + kHalf * step, step),
                       gather_blocks<T, kBytes / 2>(from, step));
  }
}

// A register of keys for each of 16 / sizeof(T) channels: transposes blocks within each
// register.
HWY_INLINE void transpose_keys(const float* k, Index stride, float* panel) {
  const hn::ScalableTag<float> d;
  const auto a = gather_blocks<float, HWY_MAX_BYTES>(k, 4 * stride);
  const auto b = gather_blocks<float, HWY_MAX_BYTES>(k + stride, 4 * stride);
  const auto c = gather_blocks<float, HWY_MAX_BYTES>(k + 2 * stride, 4 * stride);
  const auto e = gather_blocks<float, HWY_MAX_BYTES>(k + 3 * stride, 4 * stride);
  const hn::Repartition<double, decltype(d)> dd;
  const auto pairs = [&](auto x, auto y)
                         HWY_ATTR { return hn::BitCast(dd, hn::InterleaveLower(d, x, y)); };
  const auto upper_pairs = [&](auto x, auto y)
                               HWY_ATTR { return hn::BitCast(dd, hn::InterleaveUpper(d, x, y)); };
  // a0 b0 a1 b1 and c0 e0 c1 e1 give a0 b0 c0 e0, a1 b1 c1 e1.
  const auto ab = pairs(a, b);
  const auto ce = pairs(c, e);
  const auto ab2 = upper_pairs(a, b);
  const auto ce2 = upper_pairs(c, e);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, ab, ce)), d, panel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, ab, ce)), d, panel + kPanel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, ab2, ce2)), d, panel + 2 * kPanel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, ab2, ce2)), d, panel + 3 * kPanel);
}
HWY_INLINE void transpose_keys(const double* k, Index stride, double* panel) {
  const hn::ScalableTag<double> d;
  const auto a = gather_blocks<double, HWY_MAX_BYTES>(k, 2 * stride);
  const auto b = gather_blocks<double, HWY_MAX_BYTES>(k + stride, 2 * stride);
  hn::StoreU(hn::InterleaveLower(d, a, b), d, panel);
  hn::StoreU(hn::InterleaveUpper(d, a, b), d, panel + kPanel);
}

template <class T>
HWY_NOINLINE void pack_panel(const RowsOf<const T>& k, Index keys, Index D, T* panel) {
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr Index kChannels = 16 / sizeof(T);
  const Index whole_keys = keys / kLanes * kLanes;
  const Index whole_channels = D / kChannels * kChannels;
  for (Index n = 0; n < whole_keys; n += kLanes) {
    const T* rows = k.data + n * k.stride;
    for (Index c = 0; c < whole_channels; c += kChannels) {
      transpose_keys(rows + c, k.stride, panel + c * kPanel + n);
    }
  }
  const auto copy = [&](Index n0, Index n1, Index c0, Index c1) HWY_ATTR {
    for (Index n = n0; n < n1; ++n) {
      for (Index c = c0; c < c1; ++c) panel[c * kPanel + n] = k.data[n * k.stride + c];
    }
  };
  copy(0, keys, whole_channels, D);
  if (whole_keys < keys) {
    // The last keys are padded with rows of zeros, several channels at a time.
    constexpr Index kPiece = 64;
    HWY_ALIGN T rows[kLanes * kPiece];
    for (Index c0 = 0; c0 < whole_channels; c0 += kPiece) {
      const Index width = std::min(kPiece, whole_channels - c0);
      for (Index n = 0; n < kLanes; ++n) {
        if (whole_keys + n < keys) {
          std::copy_n(k.data + (whole_keys + n) * k.stride + c0, width, rows + n * kPiece);
        } else {
          std::fill_n(rows + n * kPiece, width, T(0));
        }
      }
      for (Index c = 0; c < width; c += kChannels) {
        transpose_keys(rows + c, kPiece, panel + (c0 + c) * kPanel + whole_keys);
      }
    }
  }
  if (keys == kPanel) return;
  for (Index c = 0; c < D; ++c)
    std::fill(panel + c * kPanel + keys, panel + (c + 1) * kPanel, T(0));
}

// ---- q k^T ----------------------------------------------------------------------------------

// One block of channels: sums from zero, added to those of the previous blocks if kAdds. Not
// inlined: in a large function gcc 12 spills the accumulators, as it does if one
// function loops over all blocks.
template <class T, int kRows, bool kAdds>
HWY_NOINLINE void scores_tile(const T* HWY_RESTRICT q, Index q_stride, Index channels,
                              const T* HWY_RESTRICT panel, T scale, T* HWY_RESTRICT s,
                              Index s_stride) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  for (Index n = 0; n < kPanel; n += kTileVectors * kLanes) {
    V acc[kRows][kTileVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kTileVectors; ++x) acc[r][x] = hn::Zero(d);
    }
    const T* k = panel + n;
    // A block of channels is short: unrolling reduces the loop overhead.
#pragma GCC unroll 4
    for (Index c = 0; c < channels; ++c, k += kPanel) {
      V keys[kTileVectors];
#pragma GCC unroll 8
      for (int x = 0; x < kTileVectors; ++x) keys[x] = hn::LoadU(d, k + x * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V value = hn::Set(d, q[r * q_stride + c]);
#pragma GCC unroll 8
        for (int x = 0; x < kTileVectors; ++x) acc[r][x] = hn::MulAdd(value, keys[x], acc[r][x]);
      }
    }
    const V factor = hn::Set(d, scale);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kTileVectors; ++x) {
        T* const to = s + r * s_stride + n + x * kLanes;
        if (kAdds) acc[r][x] = hn::Add(hn::LoadU(d, to), acc[r][x]);
        hn::StoreU(hn::Mul(acc[r][x], factor), d, to);
      }
    }
  }
}

template <class T>
void scores(const RowsOf<const T>& q, Index rows, Index D, const T* panel, T scale,
            const RowsOf<T>& s) {
  using Tile = void (*)(const T*, Index, Index, const T*, T, T*, Index);
  constexpr Tile kTiles[2][kTileRows] = {
      {&scores_tile<T, 1, false>, &scores_tile<T, 2, false>, &scores_tile<T, 3, false>,
       &scores_tile<T, 4, false>, &scores_tile<T, 5, false>, &scores_tile<T, 6, false>},
      {&scores_tile<T, 1, true>, &scores_tile<T, 2, true>, &scores_tile<T, 3, true>,
       &scores_tile<T, 4, true>, &scores_tile<T, 5, true>, &scores_tile<T, 6, true>}};
  // Block by block for all rows: a block of a panel stays in the first-level cache.
  for (Index c = 0; c < D; c += core::kChannelBlock) {
    const Index end = std::min(D, c + core::kChannelBlock);
    const Tile* const tiles = kTiles[c == 0 ? 0 : 1];
    for (Index r = 0; r < rows; r += kTileRows) {
      tiles[std::min(kTileRows, rows - r) - 1](q.data + r * q.stride + c, q.stride, end - c,
                                               panel + c * kPanel, end < D ? T(1) : scale,
                                               s.data + r * s.stride, s.stride);
    }
  }
}

// ---- w v ------------------------------------------------------------------------------------

// The first n lanes of a register; memory after them is not touched.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_part(D d, const T* from, Index n) {
#if HWY_MAX_BYTES == 16
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)] = {};
  std::copy(from, from + n, lanes);
  return hn::Load(d, lanes);
#else
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(n)), d, from);
#endif
}
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_part(hn::Vec<D> x, D d, T* to, Index n) {
#if HWY_MAX_BYTES == 16
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(x, d, lanes);
  std::copy(lanes, lanes + n, to);
#else
  hn::BlendedStore(x, hn::FirstN(d, static_cast<std::size_t>(n)), d, to);
#endif
}

// How the weights of a sum are laid out, and where it starts.
//   kRows          w_rn at data[r * stride + n]; starts from acc
//   kRowsFromZero  likewise; starts from zero and is added to acc
//   kColumns       w_rn at data[n * stride + r]; starts from zero and is added to acc
enum class Weights { kRows, kRowsFromZero, kColumns };

// kVectors registers of channels, the last of which has `last` channels (kWhole: all).
template <class T, Weights kWeights, int kRows, int kVectors, bool kWhole>
HWY_NOINLINE void weighted_sum_tile(const T* HWY_RESTRICT w, Index w_stride,
                                    const T* HWY_RESTRICT v, Index v_stride, Index keys, Index last,
                                    T* HWY_RESTRICT acc, Index acc_stride) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr bool kByRows = kWeights != Weights::kColumns;
  constexpr bool kFromZero = kWeights != Weights::kRows;
  const auto load = [&](const T* from, int x) HWY_ATTR {
    if (!kWhole && x == kVectors - 1) return load_part(d, from + x * kLanes, last);
    return hn::LoadU(d, from + x * kLanes);
  };
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      sum[r][x] = kFromZero ? hn::Zero(d) : load(acc + r * acc_stride, x);
    }
  }
  for (Index n = 0; n < keys; ++n, v += v_stride) {
    V values[kVectors];
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) values[x] = load(v, x);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, kByRows ? w[r * w_stride + n] : w[n * w_stride + r]);
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) sum[r][x] = hn::MulAdd(weight, values[x], sum[r][x]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      T* to = acc + r * acc_stride + x * kLanes;
      if (kFromZero) sum[r][x] = hn::Add(load(acc + r * acc_stride, x), sum[r][x]);
      if (!kWhole && x == kVectors - 1) {
        store_part(sum[r][x], d, to, last);
      } else {
        hn::StoreU(sum[r][x], d, to);
      }
    }
  }
}

template <class T, Weights kWeights, int kRows>
void weighted_sum_rows(const RowsOf<const T>& w, const RowsOf<const T>& v, Index keys, Index E,
                       const RowsOf<T>& acc) {
  using Tile = void (*)(const T*, Index, const T*, Index, Index, Index, T*, Index);
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr Tile kWhole[] = {
    &weighted_sum_tile<T, kWeights, kRows, 1, true>,
    &weighted_sum_tile<T, kWeights, kRows, 2, true>,
#if HWY_TARGET == HWY_AVX3
    &weighted_sum_tile<T, kWeights, kRows, 3, true>,
    &weighted_sum_tile<T, kWeights, kRows, 4, true>,
#endif
  };
  constexpr Tile kPart[] = {
    &weighted_sum_tile<T, kWeights, kRows, 1, false>,
    &weighted_sum_tile<T, kWeights, kRows, 2, false>,
#if HWY_TARGET == HWY_AVX3
    &weighted_sum_tile<T, kWeights, kRows, 3, false>,
    &weighted_sum_tile<T, kWeights, kRows, 4, false>,
#endif
  };
  // Registers are divided evenly: 5 are 3 + 2, not 4 + 1, whose single register would be bound by
  // the latency of its additions.
  const Index vectors = (E + kLanes - 1) / kLanes;
  const Index pieces = (vectors + kTileVectors - 1) / kTileVectors;
  Index begin = 0;
  for (Index p = 0; p < pieces; ++p) {
    const Index end = vectors * (p + 1) / pieces;
    const Index last = std::min(E - (end - 1) * kLanes, kLanes);
    const Tile tile = (last == kLanes ? kWhole : kPart)[end - begin - 1];
    tile(w.data, w.stride, v.data + begin * kLanes, v.stride, keys, last, acc.data + begin * kLanes,
         acc.stride);
    begin = end;
  }
}

template <class T, Weights kWeights>
void any_weighted_sum(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& v, Index keys,
                      Index E, const RowsOf<T>& acc) {
  constexpr void (*kByRows[])(const RowsOf<const T>&, const RowsOf<const T>&, Index, Index,
                              const RowsOf<T>&) = {
      &weighted_sum_rows<T, kWeights, 1>, &weighted_sum_rows<T, kWeights, 2>,
      &weighted_sum_rows<T, kWeights, 3>, &weighted_sum_rows<T, kWeights, 4>,
      &weighted_sum_rows<T, kWeights, 5>, &weighted_sum_rows<T, kWeights, 6>};
  kByRows[rows - 1](w, v, keys, E, acc);
}

template <class T>
void weighted_sum(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& v, Index keys,
                  Index E, const RowsOf<T>& acc) {
  any_weighted_sum<T, Weights::kRows>(w, rows, v, keys, E, acc);
}

template <class T>
void add_product(const RowsOf<const T>& x, Index rows, const RowsOf<const T>& w, Index terms,
                 Index columns, const RowsOf<T>& y) {
  any_weighted_sum<T, Weights::kRowsFromZero>(x, rows, w, terms, columns, y);
}

template <class T>
void transposed_sum(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& x, Index count,
                    Index width, const RowsOf<T>& acc) {
  any_weighted_sum<T, Weights::kColumns>(w, rows, x, count, width, acc);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
