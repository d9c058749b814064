// SPDX-License-Identifier: Apache-2.0
// Register tiles of BF16 two-way dot products, only for AVX-512 with BF16.
#ifndef QKV_KERNELS_DOT2_INL_H_
#define QKV_KERNELS_DOT2_INL_H_

#include <algorithm>

#include <hwy/highway.h>

#include "core/integers.h"
#include "core/order.h"
#include "kernels/words-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kPanelVectors = kPanel / kWordLanes;

HWY_INLINE __m512 add_pairs(__m512 sum, __m512 a, __m512 b) {
#if defined(__clang__)
  // Without this line clang 16's vectorizer recurses without end if a shuffle makes a BF16 operand.
  __asm__("" : "+v"(a), "+v"(b));
#endif
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// ---- q k^T ----------------------------------------------------------------------------------

// Computes one block of channels of a tile of scores, as scores_tile in kernels/tile-inl.h does.
template <int kRows, bool kAdds>
HWY_NOINLINE void dot2_scores_tile(const float* HWY_RESTRICT q, Index q_stride, Index words,
                                   const float* HWY_RESTRICT k, float scale, float* HWY_RESTRICT s,
                                   Index s_stride) {
  __m512 acc[kRows][kPanelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kPanelVectors; ++x) acc[r][x] = _mm512_setzero_ps();
  }
#pragma GCC unroll 4
  for (Index m = 0; m < words; ++m, k += kPanel) {
    __m512 keys[kPanelVectors];
#pragma GCC unroll 8
    for (int x = 0; x < kPanelVectors; ++x) keys[x] = _mm512_loadu_ps(k + x * kWordLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 value = _mm512_set1_ps(q[r * q_stride + m]);
#pragma GCC unroll 8
      for (int x = 0; x < kPanelVectors; ++x) acc[r][x] = add_pairs(acc[r][x], value, keys[x]);
    }
  }
  const __m512 factor = _mm512_set1_ps(scale);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kPanelVectors; ++x) {
      float* const to = s + r * s_stride + x * kWordLanes;
      if (kAdds) acc[r][x] = _mm512_add_ps(_mm512_loadu_ps(to), acc[r][x]);
      _mm512_storeu_ps(to, _mm512_mul_ps(acc[r][x], factor));
    }
  }
}

inline void dot2_scores(const Words& q, Index rows, Index D, const float* panel, float scale,
                        const RowsOf<float>& s) {
  using Tile = void (*)(const float*, Index, Index, const float*, float, float*, Index);
  constexpr Tile kTiles[2][kTileRows] = {
      {&dot2_scores_tile<1, false>, &dot2_scores_tile<2, false>, &dot2_scores_tile<3, false>,
       &dot2_scores_tile<4, false>, &dot2_scores_tile<5, false>, &dot2_scores_tile<6, false>},
      {&dot2_scores_tile<1, true>, &dot2_scores_tile<2, true>, &dot2_scores_tile<3, true>,
       &dot2_scores_tile<4, true>, &dot2_scores_tile<5, true>, &dot2_scores_tile<6, true>}};
  for (Index c = 0; c < D; c += core::kChannelBlock) {
    const Index end = std::min(D, c + core::kChannelBlock);
    const Tile* const tiles = kTiles[c == 0 ? 0 : 1];
    for (Index r = 0; r < rows; r += kTileRows) {
      tiles[std::min(kTileRows, rows - r) - 1](
          q.data + r * q.stride + c / 2, q.stride, words_of(end - c), panel + c / 2 * kPanel,
          end < D ? 1.0F : scale, s.data + r * s.stride, s.stride);
    }
  }
}

// Computes scores of the whole panel, whatever the number of keys.
inline void dot2_scores_of_keys(const Words& q, Index rows, Index D, const float* panel, Index,
                                float scale, const RowsOf<float>& s) {
  dot2_scores(q, rows, D, panel, scale, s);
}

// Computes kRows rows of scores with keys as they are stored, 16 keys at a time.
template <int kRows>
HWY_NOINLINE void stored_dot2_scores_tile(const Words& q, Index D, const StoredRows& k, Index keys,
                                          float scale, const RowsOf<float>& s,
                                          LinesAhead& shared_ahead) {
  LinesAhead ahead = shared_ahead;
  for (Index n = 0; n < keys; n += kWordLanes) {
    const StoredRows rows = k.row(n);
    for (Index begin = 0; begin < D; begin += core::kChannelBlock) {
      const Index end = std::min(D, begin + core::kChannelBlock);
      __m512 acc[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
      for (Index c = begin; c < end; c += kLineChannels) {
        const LineWords line(rows, keys - n, c, end - c);
        const Index words = words_of(end - c);
        const float* HWY_RESTRICT values = q.data + c / 2;
#pragma GCC unroll 16
        for (int m = 0; m < kLineWords; ++m) {
          if (m >= words) break;
          ahead.ask();
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const __m512 value = _mm512_set1_ps(values[r * q.stride + m]);
            acc[r] = add_pairs(acc[r], value, line.words[m].raw);
          }
        }
      }
      const __m512 factor = _mm512_set1_ps(end < D ? 1.0F : scale);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* const to = s.data + r * s.stride + n;
        if (begin > 0) acc[r] = _mm512_add_ps(_mm512_loadu_ps(to), acc[r]);
        _mm512_storeu_ps(to, _mm512_mul_ps(acc[r], factor));
      }
    }
  }
  shared_ahead = ahead;
}

inline void stored_dot2_scores(const Words& q, Index rows, Index D, const StoredRows& k, Index keys,
                               float scale, const RowsOf<float>& s, const ReadAhead& ahead) {
  using Tile = void (*)(const Words&, Index, const StoredRows&, Index, float, const RowsOf<float>&,
                        LinesAhead&);
  constexpr Tile kTiles[] = {&stored_dot2_scores_tile<1>, &stored_dot2_scores_tile<2>,
                             &stored_dot2_scores_tile<3>, &stored_dot2_scores_tile<4>,
                             &stored_dot2_scores_tile<5>, &stored_dot2_scores_tile<6>,
                             &stored_dot2_scores_tile<7>, &stored_dot2_scores_tile<8>};
  constexpr Index kMostRows = 8;
  const Index pieces = core::divide_up(rows, kMostRows);
  const Index most = core::divide_up(rows, pieces);
  // If there are several tiles of rows, each reads 16 keys before any reads the next 16.
  const Index at_once = pieces == 1 ? keys : kWordLanes;
  for (Index n = 0; n < keys; n += at_once) {
    const Index count = std::min(at_once, keys - n);
    for (Index r = 0; r < rows; r += most) {
      LinesAhead lines(r == 0 ? ahead : ReadAhead{}, n, q.data);
      kTiles[std::min(most, rows - r) - 1]({q.data + r * q.stride, q.stride}, D, k.row(n), count,
                                           scale, {s.data + r * s.stride + n, s.stride}, lines);
    }
  }
}

// ---- w v ------------------------------------------------------------------------------------

// The source of a tile's values: words that `join_values` has made, or rows as they are stored.
enum class Values { kWords, kStored };

// Adds a tile of weighted sums of E channels, at most kUnits times 32.
template <Values kValues, int kRows, int kUnits>
HWY_NOINLINE void dot2_sum_tile(const Words& w, const void* v, Index v_stride, Index keys, Index E,
                                const RowsOf<float>& acc, LinesAhead* shared_ahead) {
  constexpr int kVectors = 2 * kUnits;
  __mmask16 some[kVectors];
  __mmask32 stored[kUnits];
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int x = 0; x < kVectors; ++x) some[x] = first_words(E - x * kWordLanes);
#pragma GCC unroll 8
  for (int u = 0; u < kUnits; ++u) stored[u] = first_values(E - u * kLineChannels);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      sum[r][x] = _mm512_maskz_loadu_ps(some[x], acc.data + r * acc.stride + x * kWordLanes);
    }
  }
  const float* HWY_RESTRICT weights = w.data;
  const auto* HWY_RESTRICT words = static_cast<const float*>(v);
  const auto* HWY_RESTRICT rows = static_cast<const BFloat16*>(v);
  LinesAhead ahead = shared_ahead != nullptr ? *shared_ahead : LinesAhead({}, 0, w.data);
  for (Index n = 0; n < keys; n += 2, ++weights) {
    __m512 values[kVectors];
    if constexpr (kValues == Values::kWords) {
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) {
        values[x] = _mm512_maskz_loadu_ps(some[x], words + x * kWordLanes);
      }
      words += v_stride;
    } else {
      // There is no second row behind an odd last key.
      const bool both = n + 1 < keys;
      const BFloat16* second = both ? rows + v_stride : rows;
#pragma GCC unroll 8
      for (int u = 0; u < kUnits; ++u) {
        ahead.ask();
        ahead.ask();
        const __m512i a = _mm512_maskz_loadu_epi16(stored[u], rows + u * kLineChannels);
        const __m512i b =
            _mm512_maskz_loadu_epi16(both ? stored[u] : 0, second + u * kLineChannels);
        values[2 * u] = join_pair_of_rows(a, b, false);
        values[2 * u + 1] = join_pair_of_rows(a, b, true);
      }
      rows += 2 * v_stride;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = _mm512_set1_ps(weights[r * w.stride]);
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) sum[r][x] = add_pairs(sum[r][x], weight, values[x]);
    }
  }
  if (shared_ahead != nullptr) *shared_ahead = ahead;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kVectors; ++x) {
      _mm512_mask_storeu_ps(acc.data + r * acc.stride + x * kWordLanes, some[x], sum[r][x]);
    }
  }
}

template <Values kValues>
void dot2_sum(const Words& w, Index rows, const void* v, Index v_stride, Index keys, Index E,
              const RowsOf<float>& acc, LinesAhead* ahead) {
  using Tile =
      void (*)(const Words&, const void*, Index, Index, Index, const RowsOf<float>&, LinesAhead*);
  constexpr Tile kTiles[2][kTileRows] = {
      {&dot2_sum_tile<kValues, 1, 1>, &dot2_sum_tile<kValues, 2, 1>, &dot2_sum_tile<kValues, 3, 1>,
       &dot2_sum_tile<kValues, 4, 1>, &dot2_sum_tile<kValues, 5, 1>, &dot2_sum_tile<kValues, 6, 1>},
      {&dot2_sum_tile<kValues, 1, 2>, &dot2_sum_tile<kValues, 2, 2>, &dot2_sum_tile<kValues, 3, 2>,
       &dot2_sum_tile<kValues, 4, 2>, &dot2_sum_tile<kValues, 5, 2>,
       &dot2_sum_tile<kValues, 6, 2>}};
  constexpr Index kValueBytes = kValues == Values::kWords ? 4 : 2;
  for (Index c = 0; c < E; c += 2 * kLineChannels) {
    const Index channels = std::min(E - c, 2 * kLineChannels);
    kTiles[channels > kLineChannels ? 1 : 0][rows - 1](
        w, static_cast<const std::byte*>(v) + c * kValueBytes, v_stride, keys, channels,
        {acc.data + c, acc.stride}, ahead);
  }
}

inline void dot2_words_sum(const Words& w, Index rows, const Words& v, Index keys, Index E,
                           const RowsOf<float>& acc) {
  dot2_sum<Values::kWords>(w, rows, v.data, v.stride, keys, E, acc, nullptr);
}

inline void stored_dot2_sum(const Words& w, Index rows, const StoredRows& v, Index keys, Index E,
                            const RowsOf<float>& acc, const ReadAhead& ahead) {
  LinesAhead lines(ahead, 0, w.data);
  dot2_sum<Values::kStored>(w, rows, v.data, v.stride, keys, E, acc, &lines);
}

// ---- for measuring --------------------------------------------------------------------------

inline double dot2_multiply_adds(Index rounds) {
  constexpr int kSums = 24;
  __m512 acc[kSums];
#pragma GCC unroll 24
  for (int x = 0; x < kSums; ++x) acc[x] = _mm512_set1_ps(static_cast<float>(x + 1));
  __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(0x3A003A00));  // two BF16 numbers 2^-11
  for (Index n = 0; n < rounds; ++n) {
#pragma GCC unroll 24
    for (int x = 0; x < kSums; ++x) acc[x] = add_pairs(acc[x], factor, factor);
  }
  __m512 total = acc[0];
#pragma GCC unroll 24
  for (int x = 1; x < kSums; ++x) total = _mm512_add_ps(total, acc[x]);
  [[maybe_unused]] volatile float sink = _mm512_cvtss_f32(total);  // keeps the loop
  return 4.0 * kSums * static_cast<double>(kWordLanes) * static_cast<double>(rounds);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QKV_KERNELS_DOT2_INL_H_
