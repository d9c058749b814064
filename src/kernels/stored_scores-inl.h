// SPDX-License-Identifier: Apache-2.0
// Scores for few queries, from keys as they are stored, for each CPU target. Keys that are read
// only once are not worth packing.
#if defined(QKV_KERNELS_STORED_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_STORED_SCORES_INL_H_
#undef QKV_KERNELS_STORED_SCORES_INL_H_
#else
#define QKV_KERNELS_STORED_SCORES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include <hwy/highway.h>

#include "core/integers.h"
#include "core/order.h"
#include "kernels/dot_kernels.h"
#include "kernels/stored-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest number of rows of a tile. AVX-512's 32 registers hold the sums of 8 rows, a step of
// keys, and a query's channel.
inline constexpr int kMostStoredRows = HWY_TARGET == HWY_AVX3 ? 8 : 6;

// Computes the scores of kRows queries and `registers` whole registers of keys, in the order of
// scores_tile in kernels/tile-inl.h: each block of channels is summed from zero and added to s, but
// the first block replaces s unless `adds`. The last block multiplies the result by `scale`.
template <class T, class Stored, int kRows>
HWY_NOINLINE void stored_scores_tile(const RowsOf<const T>& q, Index D,
                                     const RowsOf<const Stored>& k, Index registers, bool adds,
                                     T scale, const RowsOf<T>& s, LinesAhead& shared_ahead) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  using Wide = Step<T, Stored, kWideStep<T>>;
  using Narrow = Step<T, Stored, 16>;
  // Prefetches as many lines as are read.
  LinesAhead ahead = shared_ahead;
  const Stored* HWY_RESTRICT keys_of_register = k.data;
  T* HWY_RESTRICT to_register = s.data;
  for (Index i = 0; i < registers; ++i) {
    Index c = 0;
    while (c < D) {
      const bool adds_block = adds || c > 0;
      const Index end = std::min(D, c + core::kChannelBlock);
      V acc[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = hn::Zero(d);
      for (; c + Wide::kChannels <= end; c += Wide::kChannels) {
        const Wide step(keys_of_register + c, k.stride);
#pragma GCC unroll 32
        for (int n = 0; n < Wide::kChannels; ++n) {
          if (n % kChannelsOfLine<Wide, T> == 0) ahead.ask();
          const V keys = step.channel(n);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            acc[r] = hn::MulAdd(hn::Set(d, q.data[r * q.stride + c + n]), keys, acc[r]);
          }
        }
      }
      for (; c < end; c += Narrow::kChannels) {
        const Narrow step(keys_of_register + c, k.stride);
#pragma GCC unroll 8
        for (int n = 0; n < Narrow::kChannels; ++n) {
          if (c + n >= end) break;
          if (n % kChannelsOfLine<Wide, T> == 0) ahead.ask();
          const V keys = step.channel(n);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            acc[r] = hn::MulAdd(hn::Set(d, q.data[r * q.stride + c + n]), keys, acc[r]);
          }
        }
      }
      const V factor = hn::Set(d, end < D ? T(1) : scale);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        T* const to = to_register + r * s.stride;
        if (adds_block) acc[r] = hn::Add(hn::LoadU(d, to), acc[r]);
        hn::StoreU(hn::Mul(acc[r], factor), d, to);
      }
    }
    keys_of_register += kLanes * k.stride;
    to_register += kLanes;
  }
  shared_ahead = ahead;
}

// Calls tile(first row, number of rows) for all rows, divided evenly.
template <class F>
void for_each_stored_tile(Index rows, const F& tile) {
  const Index pieces = core::divide_up(rows, kMostStoredRows);
  const Index most = core::divide_up(rows, pieces);
  for (Index r = 0; r < rows; r += most) tile(r, std::min(most, rows - r));
}

template <class T, class Stored>
void stored_scores_of(const RowsOf<const T>& q, Index rows, Index D, const RowsOf<const Stored>& k,
                      Index keys, T scale, const RowsOf<T>& s, const ReadAhead& ahead) {
  using Tile = void (*)(const RowsOf<const T>&, Index, const RowsOf<const Stored>&, Index, bool, T,
                        const RowsOf<T>&, LinesAhead&);
  constexpr auto kTiles = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Tile, kMostStoredRows>{&stored_scores_tile<T, Stored, kRows + 1>...};
  }(std::make_integer_sequence<int, kMostStoredRows>());
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr Index kBlock = core::kChannelBlock;
  constexpr Index kStep = Step<T, Stored, 16>::kChannels;
  // Adds channels c .. c + channels - 1 to the scores of `registers` registers of keys from key n
  // on. `block` holds these channels of these keys.
  const auto add = [&](Index n, Index c, Index channels, const RowsOf<const Stored>& block,
                       Index registers) HWY_ATTR {
    for_each_stored_tile(rows, [&](Index r, Index some) HWY_ATTR {
      LinesAhead lines(r == 0 && c == 0 ? ahead : ReadAhead{}, n, q.data);
      kTiles[static_cast<std::size_t>(some - 1)](
          {q.data + r * q.stride + c, q.stride}, channels, block, registers, c > 0,
          c + channels < D ? T(1) : scale, {s.data + r * s.stride + n, s.stride}, lines);
    });
  };
  // The last step of the last block of channels may go beyond channel D - 1. Such a block is
  // copied, with zeros behind its channels.
  const Index in_place = D % kStep == 0 ? D : D / kBlock * kBlock;
  alignas(64) Stored copy[kLanes * kBlock];
  const auto add_copies = [&](Index n, Index from, Index count) HWY_ATTR {
    for (Index c = from; c < D; c += kBlock) {
      const Index channels = std::min(kBlock, D - c);
      const Index padded = core::round_up(channels, kStep);
      for (Index x = 0; x < kLanes; ++x) {
        Stored* row = copy + x * kBlock;
        const Index given = x < count ? channels : 0;
        std::copy_n(k.data + (n + x) * k.stride + c, given, row);
        std::fill(row + given, row + padded, Stored());
      }
      add(n, c, channels, {copy, kBlock}, 1);
    }
  };
  // If there are several tiles of rows, all of them read one register of keys before any reads the
  // next.
  const Index registers = keys / kLanes;
  const Index at_once = rows <= kMostStoredRows ? std::max<Index>(registers, 1) : 1;
  for (Index g = 0; in_place > 0 && g < registers; g += at_once) {
    add(g * kLanes, 0, in_place, {k.data + g * kLanes * k.stride, k.stride}, at_once);
  }
  for (Index g = 0; in_place < D && g < registers; ++g) add_copies(g * kLanes, in_place, kLanes);
  if (registers * kLanes < keys) add_copies(registers * kLanes, 0, keys - registers * kLanes);
}

template <class T>
void stored_scores(const RowsOf<const T>& q, Index rows, Index D, const StoredRows& k, Index keys,
                   T scale, const RowsOf<T>& s, const ReadAhead& ahead) {
  visit_stored<T>(k, [&]<class Stored>(const Stored* data) HWY_ATTR {
    stored_scores_of<T, Stored>(q, rows, D, {data, k.stride}, keys, scale, s, ahead);
  });
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
