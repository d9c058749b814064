// SPDX-License-Identifier: Apache-2.0
// The loops of the backward pass with BF16 two-way dot products, only for AVX-512 with BF16.
#ifndef QKV_KERNELS_DOT2_GRADIENT_INL_H_
#define QKV_KERNELS_DOT2_GRADIENT_INL_H_

#include "kernels/dot2-inl.h"
#include "kernels/gradient_kernels.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace qkv::kernels::HWY_NAMESPACE {

// Adds a tile of transposed sums of E channels, at most kUnits times 32. Unlike in dot2_sum_tile,
// row m of w has word m of all sums, and sums start from zero before they are added to `acc`.
template <int kRows, int kUnits>
HWY_NOINLINE void transposed_dot2_tile(const Words& w, const Words& x, Index pairs, Index E,
                                       const RowsOf<float>& acc) {
  constexpr int kVectors = 2 * kUnits;
  __mmask16 some[kVectors];
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int c = 0; c < kVectors; ++c) some[c] = first_words(E - c * kWordLanes);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  const float* HWY_RESTRICT weights = w.data;
  const float* HWY_RESTRICT words = x.data;
  for (Index m = 0; m < pairs; ++m, weights += w.stride, words += x.stride) {
    __m512 values[kVectors];
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      values[c] = _mm512_maskz_loadu_ps(some[c], words + c * kWordLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = _mm512_set1_ps(weights[r]);
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) sum[r][c] = add_pairs(sum[r][c], weight, values[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      float* const to = acc.data + r * acc.stride + c * kWordLanes;
      const __m512 before = _mm512_maskz_loadu_ps(some[c], to);
      _mm512_mask_storeu_ps(to, some[c], _mm512_add_ps(before, sum[r][c]));
    }
  }
}

inline void transposed_dot2_sum(const Words& w, Index rows, const Words& x, Index count,
                                Index width, const RowsOf<float>& acc) {
  using Tile = void (*)(const Words&, const Words&, Index, Index, const RowsOf<float>&);
  constexpr Tile kTiles[2][kTileRows] = {
      {&transposed_dot2_tile<1, 1>, &transposed_dot2_tile<2, 1>, &transposed_dot2_tile<3, 1>,
       &transposed_dot2_tile<4, 1>, &transposed_dot2_tile<5, 1>, &transposed_dot2_tile<6, 1>},
      {&transposed_dot2_tile<1, 2>, &transposed_dot2_tile<2, 2>, &transposed_dot2_tile<3, 2>,
       &transposed_dot2_tile<4, 2>, &transposed_dot2_tile<5, 2>, &transposed_dot2_tile<6, 2>}};
  for (Index c = 0; c < width; c += 2 * kLineChannels) {
    const Index channels = std::min(width - c, 2 * kLineChannels);
    kTiles[channels > kLineChannels ? 1 : 0][rows - 1](w, {x.data + c, x.stride}, words_of(count),
                                                       channels, {acc.data + c, acc.stride});
  }
}

// Computes dot products of 16 rows at a time, one row in each lane.
inline void dot2_row_dots(const Words& a, const Words& b, Index rows, Index n, float* to) {
  const auto stored = [](const Words& x, Index r) {
    return StoredRows(x.data + r * x.stride, DType::kBFloat16, 2 * x.stride);
  };
  for (Index r = 0; r < rows; r += kWordLanes) {
    __m512 total = _mm512_setzero_ps();
    for (Index begin = 0; begin < n; begin += core::kChannelBlock) {
      const Index end = std::min(n, begin + core::kChannelBlock);
      __m512 sum = _mm512_setzero_ps();
      for (Index c = begin; c < end; c += kLineChannels) {
        const LineWords left(stored(a, r), rows - r, c, end - c);
        const LineWords right(stored(b, r), rows - r, c, end - c);
#pragma GCC unroll 16
        for (int m = 0; m < kLineWords; ++m) {
          if (m >= words_of(end - c)) break;
          sum = add_pairs(sum, left.words[m].raw, right.words[m].raw);
        }
      }
      total = begin == 0 ? sum : _mm512_add_ps(total, sum);
    }
    _mm512_mask_storeu_ps(to + r, first_words(rows - r), total);
  }
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QKV_KERNELS_DOT2_GRADIENT_INL_H_
