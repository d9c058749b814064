// SPDX-License-Identifier: Apache-2.0
// Words of two BF16 numbers (kernels/dot2_kernels.h), for targets with AVX512-BF16 only.
#ifndef QKV_KERNELS_WORDS_INL_H_
#define QKV_KERNELS_WORDS_INL_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include "kernels/dot2_kernels.h"
#include "kernels/stored-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of words: word m of row r is at data[r * stride + m].
using Words = RowsOf<const float>;
// Number of words in a register, which holds one word (two numbers) per key or channel.
inline constexpr Index kWordLanes = 16;
// Number of channels in a cache line, which are transposed together.
inline constexpr Index kLineChannels = kLine / 2;
inline constexpr int kLineWords = 16;

HWY_INLINE const BFloat16* row_of(const StoredRows& x, Index n) {
  return static_cast<const BFloat16*>(x.data) + n * x.stride;
}

// Masks that select the first n lanes, of 16 lanes (words) or 32 (values).
HWY_INLINE __mmask16 first_words(Index n) {
  return static_cast<__mmask16>((1U << std::clamp<Index>(n, 0, 16)) - 1U);
}
HWY_INLINE __mmask32 first_values(Index n) {
  return static_cast<__mmask32>((std::uint64_t{1} << std::clamp<Index>(n, 0, 32)) - 1U);
}

// Joins two rows: word c has the values of channel c of the first and the second row, for channels
// 0 .. 15, or 16 .. 31 if `upper`.
HWY_INLINE __m512 join_pair_of_rows(__m512i first, __m512i second, bool upper) {
  const __m512i lanes = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i from = upper ? _mm512_add_epi16(lanes, _mm512_set1_epi16(16)) : lanes;
  return _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, from, second));
}

// ---- keys -----------------------------------------------------------------------------------

// Copies channels c .. c + width - 1 of the first `count` keys to the array `to`, of shape
// [kWordLanes][kLineChannels], whose other elements become zeros.
inline void copy_line(const StoredRows& k, Index count, Index c, Index width, BFloat16* to) {
  std::fill_n(to, kWordLanes * kLineChannels, BFloat16());
  for (Index x = 0; x < count; ++x) {
    std::memcpy(to + x * kLineChannels, row_of(k, x) + c, static_cast<std::size_t>(width) * 2);
  }
}

// Words of up to kLineChannels channels, from channel c on, of up to kWordLanes keys: register m
// holds channels c + 2m and c + 2m + 1 of each key.
struct LineWords {
  hn::Vec<hn::ScalableTag<float>> words[kLineWords];

  HWY_INLINE LineWords(const StoredRows& k, Index count, Index c, Index width) {
    if (HWY_LIKELY(count >= kWordLanes && width >= kLineChannels)) {
      transpose_lines(reinterpret_cast<const std::byte*>(row_of(k, 0) + c), 2 * k.stride, words);
      return;
    }
    alignas(64) BFloat16 copy[kWordLanes * kLineChannels];
    copy_line(k, std::min(count, kWordLanes), c, std::min(width, kLineChannels), copy);
    transpose_lines(reinterpret_cast<const std::byte*>(copy), kLine, words);
  }
};

inline void pack_words(const StoredRows& k, Index keys, Index D, float* panel) {
  Index n = 0;
  for (; n < keys; n += kWordLanes) {
    const StoredRows rows = k.row(n);
    for (Index c = 0; c < D; c += kLineChannels) {
      const LineWords line(rows, keys - n, c, D - c);
      float* to = panel + c / 2 * kPanel + n;
      const Index words = std::min<Index>(words_of(D - c), kLineWords);
#pragma GCC unroll 16
      for (int m = 0; m < kLineWords; ++m) {
        if (m >= words) break;
        _mm512_storeu_ps(to + m * kPanel, line.words[m].raw);
      }
    }
  }
  if (n == kPanel) return;
  for (Index m = 0; m < words_of(D); ++m) {
    std::fill(panel + m * kPanel + n, panel + (m + 1) * kPanel, 0.0F);
  }
}

// ---- words ----------------------------------------------------------------------------------

inline void join_channels(const StoredRows& x, Index rows, Index width, const RowsOf<float>& to) {
  for (Index r = 0; r < rows; ++r) {
    float* row = to.data + r * to.stride;
    if (width % 2 != 0) row[width / 2] = 0;
    std::memcpy(row, row_of(x, r), static_cast<std::size_t>(width) * 2);
  }
}

inline void join_values(const StoredRows& v, Index keys, Index E, const RowsOf<float>& to) {
  for (Index n = 0; n < keys; n += 2) {
    const BFloat16* first = row_of(v, n);
    const bool both = n + 1 < keys;
    const BFloat16* second = both ? row_of(v, n + 1) : first;
    float* row = to.data + n / 2 * to.stride;
    for (Index c = 0; c < E; c += kLineChannels) {
      const __mmask32 some = first_values(E - c);
      const __m512i a = _mm512_maskz_loadu_epi16(some, first + c);
      const __m512i b = _mm512_maskz_loadu_epi16(both ? some : 0, second + c);
      _mm512_mask_storeu_ps(row + c, first_words(E - c), join_pair_of_rows(a, b, false));
      if (E - c <= kWordLanes) continue;
      _mm512_mask_storeu_ps(row + c + kWordLanes, first_words(E - c - kWordLanes),
                            join_pair_of_rows(a, b, true));
    }
  }
}

inline void round_weights(const float* w, Index n, float* to) {
  for (Index x = 0; x < n; x += 2 * kWordLanes) {
    const __m512 first = _mm512_loadu_ps(w + x);
    const __m512 second = _mm512_loadu_ps(w + x + kWordLanes);
    const auto both = reinterpret_cast<__m512>(_mm512_cvtne2ps_pbh(second, first));
    _mm512_storeu_ps(to + x / 2, both);
  }
}

// Whether both numbers of each of n words are finite.
inline bool all_finite_words(const float* x, Index n) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  __mmask32 non_finite = 0;
  for (Index m = 0; m < n; m += kWordLanes) {
    const __m512i words = _mm512_castps_si512(_mm512_maskz_loadu_ps(first_words(n - m), x + m));
    non_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, exponent), exponent);
  }
  return non_finite == 0;
}

inline void join_rows(const RowsOf<const float>& w, Index rows, Index n, const RowsOf<float>& to) {
  const __m512i lanes = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (Index r = 0; r < rows; r += 2) {
    const float* first = w.data + r * w.stride;
    const float* second = r + 1 < rows ? first + w.stride : nullptr;
    float* row = to.data + r / 2 * to.stride;
    for (Index x = 0; x < n; x += kWordLanes) {
      const __m512 upper = second == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(second + x);
      const auto both =
          reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, _mm512_loadu_ps(first + x)));
      _mm512_storeu_si512(row + x, _mm512_permutexvar_epi16(lanes, both));
    }
  }
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QKV_KERNELS_WORDS_INL_H_
