// SPDX-License-Identifier: Apache-2.0
// The products q k^T and w v in register tiles, and the packing of keys, for each CPU target.
#if defined(QKV_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_TILE_INL_H_
#undef QKV_KERNELS_TILE_INL_H_
#else
#define QKV_KERNELS_TILE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include <hwy/highway.h>

#include "core/integers.h"
#include "core/storage.h"
#include "kernels/dot_kernels.h"
#include "kernels/stored-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Number of registers per row of a tile.
inline constexpr int kTileVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// Returns how many of the `rest` remaining rows the next tile takes: as many as fit, but 4 if 7 or
// 8 are left. The last tile then has 3 or 4 rows: a tile of one or two rows has too few independent
// sums to hide the latency of an addition.
HWY_INLINE Index rows_of_tile(Index rest) {
  return rest <= kTileRows ? rest : rest <= kTileRows + 2 ? (rest + 1) / 2 : kTileRows;
}

// ---- panels ---------------------------------------------------------------------------------

// Packs channels from c on of as many keys as a register has lanes, in whole steps of
// Channels::kChannels. Returns the first channel that is not packed.
template <class Channels, class T, class Stored>
HWY_INLINE Index pack_steps(const Stored* rows, Index stride, Index c, Index D, T* panel) {
  const hn::ScalableTag<T> d;
  for (; c + Channels::kChannels <= D; c += Channels::kChannels) {
    const Channels step(rows + c, stride);
#pragma GCC unroll 32
    for (int x = 0; x < Channels::kChannels; ++x) {
      hn::StoreU(step.channel(x), d, panel + (c + x) * kPanel);
    }
  }
  return c;
}

template <class T, class Stored>
HWY_NOINLINE void pack_stored(const Stored* k, Index stride, Index keys, Index D, T* panel) {
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  using Wide = Step<T, Stored, kWideStep<T>>;
  using Narrow = Step<T, Stored, 16>;
  const auto pack = [&](const Stored* rows, Index row_stride, Index width, T* to) HWY_ATTR {
    const Index c = pack_steps<Wide>(rows, row_stride, 0, width, to);
    return pack_steps<Narrow>(rows, row_stride, c, width, to);
  };
  Index n = 0;
  for (; n + kLanes <= keys; n += kLanes) {
    const Stored* rows = k + n * stride;
    for (Index c = pack(rows, stride, D, panel + n); c < D; ++c) {
      for (Index x = 0; x < kLanes; ++x) {
        panel[c * kPanel + n + x] = core::to_accumulator<T>(rows[x * stride + c]);
      }
    }
  }
  if (n < keys) {
    // The last keys do not fill a register: they are copied and padded with rows of zeros, kPanel
    // channels at a time.
    alignas(64) Stored rows[kLanes * kPanel];
    for (Index c = 0; c < D; c += kPanel) {
      const Index width = std::min(kPanel, D - c);
      std::fill_n(rows, kLanes * kPanel, Stored());
      for (Index x = 0; x < keys - n; ++x) {
        std::copy_n(k + (n + x) * stride + c, width, rows + x * kPanel);
      }
      T* to = panel + c * kPanel + n;
      for (Index w = pack(rows, kPanel, width, to); w < width; ++w) {
        for (Index x = 0; x < kLanes; ++x) {
          to[w * kPanel + x] = core::to_accumulator<T>(rows[x * kPanel + w]);
        }
      }
    }
    n += kLanes;
  }
  if (n == kPanel) return;
  for (Index c = 0; c < D; ++c) std::fill(panel + c * kPanel + n, panel + (c + 1) * kPanel, T(0));
}

template <class T>
void pack_panel(const StoredRows& k, Index keys, Index D, T* panel) {
  visit_stored<T>(k, [&]<class Stored>(const Stored* rows)
                         HWY_ATTR { pack_stored(rows, k.stride, keys, D, panel); });
}

// ---- q k^T ----------------------------------------------------------------------------------

// Computes a tile of scores for one block of channels: s = scale * sum, or scale * (s + sum) if
// kAdds, where s holds the sums of the previous blocks. The tile has all keys of the panel if
// kWhole, else kVectors registers of them. Not inlined: in a large function gcc 12 spills the
// accumulators, as it does if one function loops over all blocks.
template <class T, int kRows, bool kAdds, int kVectors = kTileVectors, bool kWhole = true>
HWY_NOINLINE void scores_tile(const T* HWY_RESTRICT q, Index q_stride, Index channels,
                              const T* HWY_RESTRICT panel, T scale, T* HWY_RESTRICT s,
                              Index s_stride) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr Index kKeys = kWhole ? kPanel : kVectors * kLanes;
  for (Index n = 0; n < kKeys; n += kVectors * kLanes) {
    V acc[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) acc[r][x] = hn::Zero(d);
    }
    const T* k = panel + n;
    // A block of channels is short: unrolling reduces the loop overhead.
#pragma GCC unroll 4
    for (Index c = 0; c < channels; ++c, k += kPanel) {
      V keys[kVectors];
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) keys[x] = hn::LoadU(d, k + x * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V value = hn::Set(d, q[r * q_stride + c]);
#pragma GCC unroll 8
        for (int x = 0; x < kVectors; ++x) acc[r][x] = hn::MulAdd(value, keys[x], acc[r][x]);
      }
    }
    const V factor = hn::Set(d, scale);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) {
        T* const to = s + r * s_stride + n + x * kLanes;
        if (kAdds) acc[r][x] = hn::Add(hn::LoadU(d, to), acc[r][x]);
        hn::StoreU(hn::Mul(acc[r][x], factor), d, to);
      }
    }
  }
}

// Computes scores over all blocks of D channels. If `adds`, s holds sums over earlier channels, to
// which the sums are added before they are multiplied by `scale`.
template <class T>
void add_scores(const RowsOf<const T>& q, Index rows, Index D, const T* panel, bool adds, T scale,
                const RowsOf<T>& s) {
  using Tile = void (*)(const T*, Index, Index, const T*, T, T*, Index);
  static constexpr Tile kTiles[2][kTileRows] = {
      {&scores_tile<T, 1, false>, &scores_tile<T, 2, false>, &scores_tile<T, 3, false>,
       &scores_tile<T, 4, false>, &scores_tile<T, 5, false>, &scores_tile<T, 6, false>},
      {&scores_tile<T, 1, true>, &scores_tile<T, 2, true>, &scores_tile<T, 3, true>,
       &scores_tile<T, 4, true>, &scores_tile<T, 5, true>, &scores_tile<T, 6, true>}};
  // All rows use a block of channels before the next one is read, so that the panel's block stays
  // in the first-level cache.
  for (Index c = 0; c < D; c += core::kChannelBlock) {
    const Index end = std::min(D, c + core::kChannelBlock);
    const Tile* const tiles = kTiles[c == 0 && !adds ? 0 : 1];
    for (Index r = 0, some = 0; r < rows; r += some) {
      some = rows_of_tile(rows - r);
      tiles[some - 1](q.data + r * q.stride + c, q.stride, end - c, panel + c * kPanel,
                      end < D ? T(1) : scale, s.data + r * s.stride, s.stride);
    }
  }
}

template <class T>
void scores(const RowsOf<const T>& q, Index rows, Index D, const T* panel, T scale,
            const RowsOf<T>& s) {
  add_scores<T>(q, rows, D, panel, false, scale, s);
}

// Instances of scores_tile: kTable[registers of keys - 1][rows - 1].
template <class T, bool kAdds>
struct NarrowTiles {
  using Tile = void (*)(const T*, Index, Index, const T*, T, T*, Index);
  template <int kVectors, int... kRows>
  static constexpr std::array<Tile, kTileRows> row(std::integer_sequence<int, kRows...>) {
    return {&scores_tile<T, kRows + 1, kAdds, kVectors, false>...};
  }
  template <int... kVectors>
  static constexpr std::array<std::array<Tile, kTileRows>, kTileVectors> table(
      std::integer_sequence<int, kVectors...>) {
    return {row<kVectors + 1>(std::make_integer_sequence<int, static_cast<int>(kTileRows)>())...};
  }
  static constexpr auto kTable = table(std::make_integer_sequence<int, kTileVectors>());
};

// Computes scores of the first `keys` keys of a panel, rounded up to whole registers. The scores of
// the panel's other keys are not written.
template <class T>
void scores_of_keys(const RowsOf<const T>& q, Index rows, Index D, const T* panel, Index keys,
                    T scale, const RowsOf<T>& s) {
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr Index kStep = kTileVectors * kLanes;
  if (keys > kPanel - kLanes) return scores<T>(q, rows, D, panel, scale, s);
  for (Index c = 0; c < D; c += core::kChannelBlock) {
    const Index end = std::min(D, c + core::kChannelBlock);
    for (Index r = 0, some = 0; r < rows; r += some) {
      some = rows_of_tile(rows - r);
      for (Index n = 0; n < keys; n += kStep) {
        const Index vectors = (std::min(kStep, keys - n) + kLanes - 1) / kLanes;
        const auto& tiles = c == 0 ? NarrowTiles<T, false>::kTable : NarrowTiles<T, true>::kTable;
        tiles[static_cast<std::size_t>(vectors - 1)][static_cast<std::size_t>(some - 1)](
            q.data + r * q.stride + c, q.stride, end - c, panel + c * kPanel + n,
            end < D ? T(1) : scale, s.data + r * s.stride + n, s.stride);
      }
    }
  }
}

// ---- w v ------------------------------------------------------------------------------------

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

// The layout of the weights of a sum, and where the sum starts:
//   kRows          w_rn at data[r * stride + n]; starts from acc
//   kRowsFromZero  w_rn at data[r * stride + n]; starts from zero and is added to acc
//   kColumns       w_rn at data[n * stride + r]; starts from zero and is added to acc
//   kColumnsAlone  w_rn at data[n * stride + r]; starts from zero and is added to 0: acc is not
//   read
enum class Weights { kRows, kRowsFromZero, kColumns, kColumnsAlone };

// Stands for LinesAhead where nothing is prefetched.
struct NoAhead {
  HWY_INLINE void ask() {}
};

// Adds the weighted sums of `keys` values to a tile of acc (kColumnsAlone: writes them there). The
// tile has kRows rows of kVectors registers of channels. The last register has only `last` channels
// unless kWhole.
template <class T, class Stored, Weights kWeights, int kRows, int kVectors, bool kWhole,
          class Ahead>
HWY_NOINLINE void weighted_sum_tile(const T* HWY_RESTRICT w, Index w_stride,
                                    const Stored* HWY_RESTRICT v, Index v_stride, Index keys,
                                    Index last, T* HWY_RESTRICT acc, Index acc_stride,
                                    Ahead& shared_ahead) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr bool kAlone = kWeights == Weights::kColumnsAlone;
  constexpr bool kByRows = kWeights != Weights::kColumns && !kAlone;
  constexpr bool kFromZero = kWeights != Weights::kRows;
  constexpr int kVectorsOfLine = std::max(1, static_cast<int>(kLine / (kLanes * sizeof(Stored))));
  Ahead ahead = shared_ahead;
  const auto load = [&](const auto* from, int x) HWY_ATTR {
    if (!kWhole && x == kVectors - 1) return load_stored_part(d, from + x * kLanes, last);
    return load_stored(d, from + x * kLanes);
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
    for (int x = 0; x < kVectors; ++x) {
      // As many lines are prefetched as are read.
      if (x % kVectorsOfLine == 0) ahead.ask();
      values[x] = load(v, x);
    }
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
      if (kFromZero) {
        const V before = kAlone ? hn::Zero(d) : load(acc + r * acc_stride, x);
        sum[r][x] = hn::Add(before, sum[r][x]);
      }
      if (!kWhole && x == kVectors - 1) {
        store_part(sum[r][x], d, to, last);
      } else {
        hn::StoreU(sum[r][x], d, to);
      }
    }
  }
  shared_ahead = ahead;
}

// Largest number of accumulator registers per row of a tile that leaves room for the operands. It
// is larger for one or two rows, but only in calls with prefetches.
template <int kRows, class Ahead>
inline constexpr int kMostVectors = kTileVectors;
template <int kRows>
inline constexpr int kMostVectors<kRows, LinesAhead> = HWY_TARGET == HWY_AVX3 ? (kRows <= 2 ? 8 : 4)
                                                                              : (kRows == 1   ? 8
                                                                                 : kRows == 2 ? 4
                                                                                              : 2);

template <class T, class Stored, Weights kWeights, int kRows, class Ahead>
void weighted_sum_rows(const RowsOf<const T>& w, const RowsOf<const Stored>& v, Index keys, Index E,
                       const RowsOf<T>& acc, Ahead& ahead) {
  using Tile = void (*)(const T*, Index, const Stored*, Index, Index, Index, T*, Index, Ahead&);
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kMost = kMostVectors<kRows, Ahead>;
  // Instances of weighted_sum_tile, indexed [registers - 1].
  const auto tiles = []<bool kWhole, int... kVectors>(std::integer_sequence<int, kVectors...>) {
    return std::array<Tile, kMost>{
        &weighted_sum_tile<T, Stored, kWeights, kRows, kVectors + 1, kWhole, Ahead>...};
  };
  constexpr auto kCounts = std::make_integer_sequence<int, kMost>();
  constexpr std::array<Tile, kMost> kWhole = tiles.template operator()<true>(kCounts);
  constexpr std::array<Tile, kMost> kPart = tiles.template operator()<false>(kCounts);
  // Registers are divided evenly: 5 become 2 + 3, not 4 + 1, because a tile with a single register
  // per row would be bound by the latency of its additions.
  const Index vectors = core::divide_up(E, kLanes);
  const Index pieces = core::divide_up(vectors, kMost);
  Index begin = 0;
  for (Index p = 0; p < pieces; ++p) {
    const Index end = vectors * (p + 1) / pieces;
    const Index last = std::min(E - (end - 1) * kLanes, kLanes);
    const Tile tile = (last == kLanes ? kWhole : kPart)[static_cast<std::size_t>(end - begin - 1)];
    tile(w.data, w.stride, v.data + begin * kLanes, v.stride, keys, last, acc.data + begin * kLanes,
         acc.stride, ahead);
    begin = end;
  }
}

template <class T, class Stored, Weights kWeights, class Ahead>
void any_weighted_sum(const RowsOf<const T>& w, Index rows, const RowsOf<const Stored>& v,
                      Index keys, Index E, const RowsOf<T>& acc, Ahead ahead) {
  constexpr void (*kOfRowCount[])(const RowsOf<const T>&, const RowsOf<const Stored>&, Index, Index,
                                  const RowsOf<T>&,
                                  Ahead&) = {&weighted_sum_rows<T, Stored, kWeights, 1, Ahead>,
                                             &weighted_sum_rows<T, Stored, kWeights, 2, Ahead>,
                                             &weighted_sum_rows<T, Stored, kWeights, 3, Ahead>,
                                             &weighted_sum_rows<T, Stored, kWeights, 4, Ahead>,
                                             &weighted_sum_rows<T, Stored, kWeights, 5, Ahead>,
                                             &weighted_sum_rows<T, Stored, kWeights, 6, Ahead>};
  kOfRowCount[rows - 1](w, v, keys, E, acc, ahead);
}

// Adds weighted sums for any number of rows. All rows use up to kMost registers of v's channels
// before the next channels are read.
template <class T, Weights kWeights>
void sum_of_rows(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& v, Index keys,
                 Index E, const RowsOf<T>& acc) {
  using Tile = void (*)(const T*, Index, const T*, Index, Index, Index, T*, Index, NoAhead&);
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kMost = kTileVectors;
  // Instances of weighted_sum_tile, indexed [rows - 1][registers - 1].
  using Row = std::array<Tile, kMost>;
  constexpr auto row_of =
      []<bool kWhole, int kRows, int... kVectors>(std::integer_sequence<int, kVectors...>) {
        return Row{&weighted_sum_tile<T, T, kWeights, kRows, kVectors + 1, kWhole, NoAhead>...};
      };
  constexpr auto table_of = [row_of]<bool kWhole, int... kRows>(
                                std::integer_sequence<int, kRows...>) {
    return std::array<Row, kTileRows>{
        row_of.template operator()<kWhole, kRows + 1>(std::make_integer_sequence<int, kMost>())...};
  };
  constexpr auto kCounts = std::make_integer_sequence<int, static_cast<int>(kTileRows)>();
  static constexpr auto kWhole = table_of.template operator()<true>(kCounts);
  static constexpr auto kPart = table_of.template operator()<false>(kCounts);
  constexpr bool kByRows = kWeights == Weights::kRows || kWeights == Weights::kRowsFromZero;
  NoAhead ahead;
  const Index vectors = core::divide_up(E, kLanes);
  const Index pieces = core::divide_up(vectors, kMost);
  Index begin = 0;
  for (Index p = 0; p < pieces; ++p) {
    const Index end = vectors * (p + 1) / pieces;
    const Index last = std::min(E - (end - 1) * kLanes, kLanes);
    const auto& table = last == kLanes ? kWhole : kPart;
    for (Index r = 0, some = 0; r < rows; r += some) {
      some = rows_of_tile(rows - r);
      table[static_cast<std::size_t>(some - 1)][static_cast<std::size_t>(end - begin - 1)](
          w.data + (kByRows ? r * w.stride : r), w.stride, v.data + begin * kLanes, v.stride, keys,
          last, acc.data + r * acc.stride + begin * kLanes, acc.stride, ahead);
    }
    begin = end;
  }
}

template <class T>
void weighted_sum(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& v, Index keys,
                  Index E, const RowsOf<T>& acc) {
  sum_of_rows<T, Weights::kRows>(w, rows, v, keys, E, acc);
}

template <class T>
void stored_sum(const RowsOf<const T>& w, Index rows, const StoredRows& v, Index keys, Index E,
                const RowsOf<T>& acc, const ReadAhead& ahead) {
  visit_stored<T>(v, [&]<class Stored>(const Stored* data) HWY_ATTR {
    any_weighted_sum<T, Stored, Weights::kRows, LinesAhead>(w, rows, {data, v.stride}, keys, E, acc,
                                                            LinesAhead(ahead, 0, w.data));
  });
}

template <class T>
void add_product(const RowsOf<const T>& x, Index rows, const RowsOf<const T>& w, Index terms,
                 Index columns, const RowsOf<T>& y) {
  sum_of_rows<T, Weights::kRowsFromZero>(x, rows, w, terms, columns, y);
}

template <class T>
void transposed_sum(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& x, Index count,
                    Index width, const RowsOf<T>& acc) {
  sum_of_rows<T, Weights::kColumns>(w, rows, x, count, width, acc);
}

template <class T>
void transposed_product(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& x, Index count,
                        Index width, const RowsOf<T>& acc) {
  sum_of_rows<T, Weights::kColumnsAlone>(w, rows, x, count, width, acc);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
