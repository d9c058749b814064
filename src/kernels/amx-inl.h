// SPDX-License-Identifier: Apache-2.0
// The BF16 products of attention in tiles of AMX, or in emulated tiles with the same arithmetic.
#ifndef QKV_KERNELS_AMX_INL_H_
#define QKV_KERNELS_AMX_INL_H_

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hwy/highway.h>

#include "core/bfloat16_products.h"
#include "core/integers.h"
#include "kernels/amx_kernels.h"
#include "kernels/tiles-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace qkv::kernels::HWY_NAMESPACE {

// The number of terms that each row of a tile of words holds.
inline constexpr Index kStep = 2 * kTileSide;
static_assert(kStep == core::step_of(core::Products::kAmx));

// ---- c += a b -------------------------------------------------------------------------------

// The left operand: rows of words, which may begin at any byte.
struct LeftRows {
  const std::byte* data = nullptr;
  Index stride = 0;  // in bytes

  LeftRows(const void* first, Index bytes)
      : data(static_cast<const std::byte*>(first)), stride(bytes) {}
  LeftRows(const Words& words)  // NOLINT(google-explicit-constructor)
      : LeftRows(words.data, 4 * words.stride) {}
};

// Whether the sums in c start from zero or from the numbers there.
enum class SumsFrom { kZero, kMemory };

// Calls f(integral constant n) for n = 0 .. kCount - 1.
template <int kCount, class F>
HWY_INLINE void for_each_number(const F& f) {
  [&]<int... n>(std::integer_sequence<int, n...>) {
    (f(std::integral_constant<int, n>()), ...);
  }(std::make_integer_sequence<int, kCount>());
}

// Adds a b to kCount neighbouring tiles of c, which have 16 columns each unless kCount is 1.
// `words` is a multiple of 16, or less than 16.
template <int kCount, class Tiles>
HWY_NOINLINE void add_to_tiles(Tiles& tiles, const LeftRows& a, const Words& b, TileShape shape,
                               Index words, SumsFrom from, const RowsOf<float>& c) {
  shape.words = std::min(words, kTileSide);
  tiles.shape(shape);
  const Index c_bytes = 4 * c.stride;
  for_each_number<kCount>([&](auto n) {
    if (from == SumsFrom::kZero) {
      tiles.template zero<n()>();
    } else {
      tiles.template load<n()>(c.data + n() * kTileSide, c_bytes);
    }
  });
  const std::byte* left = a.data;
  const float* right = b.data;
  for (Index m = 0; m < words; m += kTileSide) {
    tiles.template load<kLeft>(left, a.stride);
    for_each_number<kCount>([&](auto n) {
      constexpr int kRight = kFirstRight + n() % (kTiles - kFirstRight);
      tiles.template stream<kRight>(right + n() * kTileSide, 4 * b.stride);
      tiles.template multiply<n(), kRight>();
    });
    left += kLine;
    right += kTileSide * b.stride;
  }
  for_each_number<kCount>(
      [&](auto n) { tiles.template store<n()>(c.data + n() * kTileSide, c_bytes); });
}

// Adds a b to c, or sets c to a b (see SumsFrom): a [rows][words], b [words][columns], with at most
// 16 rows. Steps of 32 terms, counted from word 0, are added in ascending order.
template <class Tiles>
void add_product_of_words(Tiles& tiles, const LeftRows& a, const Words& b, Index rows,
                          Index columns, Index words, SumsFrom from, const RowsOf<float>& c) {
  const auto add = [&](Index first, Index count, SumsFrom start) {
    for (Index x = 0; x < columns;) {
      const Index whole = std::min<Index>((columns - x) / kTileSide, kSums);
      const TileShape shape{rows, whole == 0 ? columns - x : kTileSide, kTileSide};
      const LeftRows left{a.data + 4 * first, a.stride};
      const Words right{b.data + first * b.stride + x, b.stride};
      const RowsOf<float> to{c.data + x, c.stride};
      switch (whole) {
        case 4:
          add_to_tiles<4>(tiles, left, right, shape, count, start, to);
          break;
        case 3:
          add_to_tiles<3>(tiles, left, right, shape, count, start, to);
          break;
        case 2:
          add_to_tiles<2>(tiles, left, right, shape, count, start, to);
          break;
        default:
          add_to_tiles<1>(tiles, left, right, shape, count, start, to);
      }
      x += whole == 0 ? columns - x : whole * kTileSide;
    }
  };
  const Index whole_words = words / kTileSide * kTileSide;
  if (whole_words > 0) add(0, whole_words, from);
  if (whole_words < words) {
    add(whole_words, words - whole_words, whole_words > 0 ? SumsFrom::kMemory : from);
  }
}

// Calls f(first, count) for the tiles of rows.
template <class F>
void for_each_tile_of_rows(Index rows, const F& f) {
  for (Index r = 0; r < rows; r += kTileSide) f(r, std::min(kTileSide, rows - r));
}

// ---- q k^T ----------------------------------------------------------------------------------

// Adds +0, which turns -0 into +0, then multiplies by `scale`.
HWY_INLINE void scale_tile(const RowsOf<float>& s, Index rows, Index columns, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (Index r = 0; r < rows; ++r) {
    for (Index x = 0; x < columns; x += kWordLanes) {
      float* const to = s.data + r * s.stride + x;
      const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(to), _mm512_setzero_ps());
      _mm512_storeu_ps(to, _mm512_mul_ps(sum, factor));
    }
  }
}

template <class Tiles>
void amx_scores_of_keys(const Words& q, Index rows, Index D, const float* panel, Index keys,
                        float scale, const RowsOf<float>& s) {
  Tiles tiles;
  const Index columns = core::round_up(keys, kTileSide);
  for_each_tile_of_rows(rows, [&](Index r, Index count) {
    const RowsOf<float> to{s.data + r * s.stride, s.stride};
    add_product_of_words(tiles, Words{q.data + r * q.stride, q.stride}, {panel, kPanel}, count,
                         columns, words_of(D), SumsFrom::kZero, to);
    scale_tile(to, count, columns, scale);
  });
}

template <class Tiles>
void amx_scores(const Words& q, Index rows, Index D, const float* panel, float scale,
                const RowsOf<float>& s) {
  amx_scores_of_keys<Tiles>(q, rows, D, panel, kPanel, scale, s);
}

// Transposes `rows` rows of `words` words to a tile of 16 by 16; missing words count as zeros.
HWY_INLINE void transpose_tile(const Words& from, Index rows, Index words, float* to,
                               Index to_stride) {
  const __mmask16 some = first_words(words);
  hn::Vec<hn::ScalableTag<float>> row[kTileSide];
  alignas(64) float copy[kTileSide * kTileSide];
#pragma GCC unroll 16
  for (int r = 0; r < kTileSide; ++r) {
    const __m512 x =
        r < rows ? _mm512_maskz_loadu_ps(some, from.data + r * from.stride) : _mm512_setzero_ps();
    _mm512_store_ps(copy + r * kTileSide, x);
  }
  transpose_lines(reinterpret_cast<const std::byte*>(copy), kLine, row);
#pragma GCC unroll 16
  for (int m = 0; m < kTileSide; ++m) _mm512_storeu_ps(to + m * to_stride, row[m].raw);
}

// The most channels whose words are transposed together.
inline constexpr Index kChannelsAtOnce = 256;

// Computes the transposed scores of 16 keys at a time: keys are the left operand as they are
// stored, and up to 16 rows of q the right one.
template <class Tiles>
void amx_stored_scores(const Words& q, Index rows, Index D, const StoredRows& k, Index keys,
                       float scale, const RowsOf<float>& s, const ReadAhead& ahead) {
  Tiles tiles;
  alignas(64) float right[kChannelsAtOnce / 2 * kTileSide];
  alignas(64) float sums[kPanel * kTileSide];
  alignas(64) BFloat16 copy[kTileSide * kStep];
  LinesAhead lines(ahead, 0, q.data);
  const Index lines_of_key = core::divide_up(2 * D, kLine);
  for (Index first = 0; first < keys; first += kPanel) {
    const Index panel = std::min(kPanel, keys - first);
    for_each_tile_of_rows(rows, [&](Index r, Index count) {
      for (Index c = 0; c < D; c += kChannelsAtOnce) {
        const Index channels = std::min(kChannelsAtOnce, D - c);
        for (Index m = 0; m < words_of(channels); m += kTileSide) {
          transpose_tile({q.data + r * q.stride + c / 2 + m, q.stride}, count,
                         std::min(kTileSide, words_of(channels) - m), right + m * kTileSide,
                         kTileSide);
        }
        for_each_tile_of_rows(panel, [&](Index n, Index some) {
          for (Index x = 0; r == 0 && c == 0 && x < some * lines_of_key; ++x) lines.ask();
          const StoredRows at = k.row(first + n);
          const RowsOf<float> to{sums + n * kTileSide, kTileSide};
          const SumsFrom from = c > 0 ? SumsFrom::kMemory : SumsFrom::kZero;
          const Index whole = channels / kStep * kStep;
          if (whole > 0) {
            add_product_of_words(tiles, {row_of(at, 0) + c, 2 * at.stride}, {right, kTileSide},
                                 some, count, whole / 2, from, to);
          }
          if (whole < channels) {
            copy_line(at, some, c + whole, channels - whole, copy);
            add_product_of_words(tiles, {copy, kLine}, {right + whole / 2 * kTileSide, kTileSide},
                                 some, count, words_of(channels - whole),
                                 whole > 0 ? SumsFrom::kMemory : from, to);
          }
        });
      }
      for (Index n = 0; n < panel; n += kTileSide) {
        alignas(64) float turned[kTileSide * kTileSide];
        transpose_tile({sums + n * kTileSide, kTileSide}, std::min(kTileSide, panel - n), count,
                       turned, kTileSide);
        scale_tile({turned, kTileSide}, count, kTileSide, scale);
        for (Index x = 0; x < count; ++x) {
          _mm512_storeu_ps(s.data + (r + x) * s.stride + first + n,
                           _mm512_load_ps(turned + x * kTileSide));
        }
      }
    });
  }
}

// ---- w v ------------------------------------------------------------------------------------

template <class Tiles>
void amx_words_sum(const Words& w, Index rows, const Words& v, Index keys, Index E,
                   const RowsOf<float>& acc) {
  Tiles tiles;
  for_each_tile_of_rows(rows, [&](Index r, Index count) {
    add_product_of_words(tiles, Words{w.data + r * w.stride, w.stride}, v, count, E, words_of(keys),
                         SumsFrom::kMemory, {acc.data + r * acc.stride, acc.stride});
  });
}

// For up to kKeysAtOnce keys and 64 channels at a time, joins values in words, then adds products.
template <class Tiles>
void amx_stored_sum(const Words& w, Index rows, const StoredRows& v, Index keys, Index E,
                    const RowsOf<float>& acc, const ReadAhead& ahead) {
  constexpr Index kKeysAtOnce = kPanel;
  constexpr Index kChannels = kSums * kTileSide;
  static_assert(kKeysAtOnce % kStep == 0);
  Tiles tiles;
  alignas(64) float joined[kKeysAtOnce / 2 * kChannels];
  LinesAhead lines(ahead, 0, w.data);
  for (Index n = 0; n < keys; n += kKeysAtOnce) {
    const Index some = std::min(kKeysAtOnce, keys - n);
    for (Index x = 0; x < some * core::divide_up(2 * E, kLine); ++x) lines.ask();
    for (Index c = 0; c < E; c += kChannels) {
      const Index channels = std::min(kChannels, E - c);
      const StoredRows from{row_of(v, n) + c, v.dtype, v.stride};
      join_values(from, some, channels, {joined, kChannels});
      for_each_tile_of_rows(rows, [&](Index r, Index count) {
        add_product_of_words(tiles, Words{w.data + r * w.stride + n / 2, w.stride},
                             {joined, kChannels}, count, channels, words_of(some),
                             SumsFrom::kMemory, {acc.data + r * acc.stride + c, acc.stride});
      });
    }
  }
}

// ---- gradients ------------------------------------------------------------------------------

// Adds sums over queries, for up to 16 keys at a time: the words of these keys are transposed to be
// the left operand.
template <class Tiles>
void amx_transposed_sum(const Words& w, Index rows, const Words& x, Index count, Index width,
                        const RowsOf<float>& acc) {
  constexpr Index kTermsAtOnce = core::kGradientBlock;
  constexpr Index kColumns = kSums * kTileSide;
  Tiles tiles;
  alignas(64) float left[kTileSide * kTermsAtOnce / 2];
  alignas(64) float sums[kTileSide * kColumns];
  for_each_tile_of_rows(rows, [&](Index r, Index some) {
    const Index words = words_of(count);
    for (Index m = 0; m < words; m += kTileSide) {
      transpose_tile({w.data + m * w.stride + r, w.stride}, std::min(kTileSide, words - m), some,
                     left + m, kTermsAtOnce / 2);
    }
    for (Index c = 0; c < width; c += kColumns) {
      const Index columns = std::min(kColumns, width - c);
      add_product_of_words(tiles, Words{left, kTermsAtOnce / 2}, {x.data + c, x.stride}, some,
                           columns, words, SumsFrom::kZero, {sums, kColumns});
      for (Index n = 0; n < some; ++n) {
        for (Index y = 0; y < columns; y += kWordLanes) {
          const __mmask16 lanes = first_words(columns - y);
          float* const to = acc.data + (r + n) * acc.stride + c + y;
          const __m512 sum = _mm512_load_ps(sums + n * kColumns + y);
          _mm512_mask_storeu_ps(to, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, to), sum));
        }
      }
    }
  });
}

// Computes dot products of 16 rows at a time, one row in each lane. The caller must have made
// subnormal numbers count as 0 (FlushesSubnormals).
HWY_NOINLINE inline void flushed_row_dots(const Words& a, const Words& b, Index rows, Index n,
                                          float* to) {
  const auto stored = [](const Words& x, Index r) {
    return StoredRows(x.data + r * x.stride, DType::kBFloat16, 2 * x.stride);
  };
  for (Index r = 0; r < rows; r += kWordLanes) {
    __m512 total = _mm512_setzero_ps();
    for (Index c = 0; c < n; c += kLineChannels) {
      const LineWords left(stored(a, r), rows - r, c, n - c);
      const LineWords right(stored(b, r), rows - r, c, n - c);
      __m512 even = _mm512_setzero_ps();
      __m512 odd = _mm512_setzero_ps();
#pragma GCC unroll 16
      for (int m = 0; m < kLineWords; ++m) {
        if (m >= words_of(n - c)) break;
        even = _mm512_fmadd_ps(first_of(left.words[m].raw), first_of(right.words[m].raw), even);
        odd = _mm512_fmadd_ps(second_of(left.words[m].raw), second_of(right.words[m].raw), odd);
      }
      total = _mm512_add_ps(total, _mm512_add_ps(even, odd));
    }
    total = _mm512_add_ps(total, _mm512_setzero_ps());
    _mm512_mask_storeu_ps(to + r, first_words(rows - r), total);
  }
}

inline void amx_row_dots(const Words& a, const Words& b, Index rows, Index n, float* to) {
  const FlushesSubnormals mode;
  flushed_row_dots(a, b, rows, n, to);
}

// ---- for measuring --------------------------------------------------------------------------

template <class Tiles>
double amx_multiply_adds(Index rounds) {
  Tiles tiles;
  alignas(64) const float words[kTileSide * kTileSide] = {};
  tiles.shape(kFullTiles);
  tiles.template load<kLeft>(words, kLine);
  tiles.template load<kFirstRight>(words, kLine);
  for_each_number<kSums>([&](auto n) { tiles.template zero<n()>(); });
  for (Index x = 0; x < rounds; ++x) {
    for_each_number<kSums>([&](auto n) { tiles.template multiply<n(), kFirstRight>(); });
  }
  alignas(64) float sums[kTileSide * kTileSide];
  tiles.template store<0>(sums, kLine);
  [[maybe_unused]] volatile float sink = sums[0];  // keeps the loop
  release_tiles();
  return 2.0 * kSums * static_cast<double>(kTileSide * kTileSide * kStep) *
         static_cast<double>(rounds);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QKV_KERNELS_AMX_INL_H_
