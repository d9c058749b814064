// SPDX-License-Identifier: Apache-2.0
// Keys stored as q8, for each CPU target: packed panels, and scores of few queries.
#if defined(QKV_KERNELS_Q8_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_Q8_KEYS_INL_H_
#undef QKV_KERNELS_Q8_KEYS_INL_H_
#else
#define QKV_KERNELS_Q8_KEYS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include <hwy/highway.h>

#include "core/integers.h"
#include "core/order.h"
#include "kernels/dot_kernels.h"
#include "kernels/q8-inl.h"
#include "kernels/stored-inl.h"
#include "kernels/stored_scores-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- panels ---------------------------------------------------------------------------------

using PanelScale = Q8Scale<widen_for(1)>;

// Converts one q8 block of each of kFloats rows to float32 and transposes the numbers: channel c of
// row r is stored at panel[c * kPanel + r].
HWY_INLINE void transpose_block(const std::byte* rows, Index stride, float* HWY_RESTRICT panel) {
  const Floats d;
  hn::Vec<Floats> words[4];
  // Bytes 0..15 hold the scale and numbers 0..13.
  transpose_words(rows, stride, words);
  const auto scale = PanelScale::of_lower(words[0]);
  const auto put = [&](int word, int byte, Index c) HWY_ATTR {
    hn::StoreU(number_of_word(words[word], byte, scale), d, panel + c * kPanel);
  };
#pragma GCC unroll 16
  for (int n = 0; n < 14; ++n) put((n + 2) / 4, (n + 2) % 4, n);
  // Bytes 16..31 hold numbers 14..29.
  transpose_words(rows + 16, stride, words);
#pragma GCC unroll 16
  for (int n = 0; n < 16; ++n) put(n / 4, n % 4, n + 14);
  // Bytes 18..33 hold numbers 16..31, of which 30 and 31 are left.
  transpose_words(rows + 18, stride, words);
  put(3, 2, 30);
  put(3, 3, 31);
}

#if HWY_TARGET == HWY_AVX3
// Transposes the 4-byte words of two blocks of each of kFloats rows: lane r of words[w] is word w
// of row r. Two blocks have 68 bytes: a cache line and one more word. Their scales are the lower
// half of word 0 and the upper half of word 8; the numbers of each block follow its scale.
inline constexpr int kTwoBlockWords = 2 * kQ8Bytes / 4;
HWY_INLINE void words_of_two_blocks(const std::byte* rows, Index stride, hn::Vec<Floats>* words) {
  transpose_lines(rows, stride, words);
  hn::Vec<Floats> last[4];
  transpose_words(rows + 2 * kQ8Bytes - 16, stride, last);
  words[16] = last[3];
}
// Transposes one block of each of kFloats rows into words 0 .. 8. The lower half of word 8 holds
// the block's last two numbers, its upper half zeros.
HWY_INLINE void words_of_block(const std::byte* rows, Index stride, hn::Vec<Floats>* words) {
  transpose_words(rows, stride, words);
  transpose_words(rows + 16, stride, words + 4);
  hn::Vec<Floats> last[4];
  transpose_words(rows + kQ8Bytes - 16, stride, last);
  words[8].raw = _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(last[3].raw), 16));
}

// Converts and transposes two blocks of each of kFloats rows.
template <class Ahead>
HWY_NOINLINE void transpose_two_blocks(const std::byte* rows, Index stride,
                                       float* HWY_RESTRICT panel, Ahead& shared_ahead) {
  const Floats d;
  Ahead ahead = shared_ahead;
  hn::Vec<Floats> words[kTwoBlockWords];
  words_of_two_blocks(rows, stride, words);
  const auto first = PanelScale::of_lower(words[0]);
  const auto second = PanelScale::of_upper(words[8]);
#pragma GCC unroll 32
  for (int n = 0; n < 32; ++n) {
    if (n % 4 == 0) ahead.ask();
    hn::StoreU(number_of_word(words[(n + 2) / 4], (n + 2) % 4, first), d, panel + n * kPanel);
  }
#pragma GCC unroll 32
  for (int n = 0; n < 32; ++n) {
    if (n % 4 == 0) ahead.ask();
    hn::StoreU(number_of_word(words[9 + n / 4], n % 4, second), d, panel + (n + 32) * kPanel);
  }
  ahead.ask();
  shared_ahead = ahead;
}
#endif

// Converts and transposes `channels` channels of each of kFloats rows.
template <class Ahead>
HWY_INLINE void transpose_blocks(const std::byte* rows, Index stride, Index channels,
                                 float* HWY_RESTRICT panel, Ahead& ahead) {
#if HWY_TARGET == HWY_AVX3
  for (; channels >= 2 * kQ8Numbers; channels -= 2 * kQ8Numbers) {
    transpose_two_blocks(rows, stride, panel, ahead);
    rows += 2 * kQ8Bytes;
    panel += 2 * kQ8Numbers * kPanel;
  }
#endif
  for (; channels > 0; channels -= kQ8Numbers) {
    for (Index n = 0; n < kFloats * kQ8Bytes; n += kLine) ahead.ask();
    transpose_block(rows, stride, panel);
    rows += kQ8Bytes;
    panel += kQ8Numbers * kPanel;
  }
}

// Packs channels c .. c + channels - 1 of keys first .. first + keys - 1, at most kPanel keys, as a
// panel with zeros behind the last key.
template <class Ahead>
void pack_channels(const Q8Rows& k, Index first, Index keys, Index c, Index channels, float* panel,
                   Ahead& ahead) {
  const Floats d;
  Index n = 0;
  for (; n + kFloats <= keys; n += kFloats) {
    transpose_blocks(k.at(first + n, c), k.stride, channels, panel + n, ahead);
  }
  if (n < keys) {
    alignas(64) std::byte rows[kFloats * 2 * kQ8Bytes];
    for (Index x = 0; x < channels; x += 2 * kQ8Numbers) {
      const Index width = std::min(2 * kQ8Numbers, channels - x);
      std::memset(rows, 0, sizeof(rows));
      for (Index r = 0; n + r < keys; ++r) {
        std::memcpy(rows + r * 2 * kQ8Bytes, k.at(first + n + r, c + x),
                    static_cast<std::size_t>(width / kQ8Numbers * kQ8Bytes));
      }
      transpose_blocks(rows, 2 * kQ8Bytes, width, panel + x * kPanel + n, ahead);
    }
    n += kFloats;
  }
  for (; n < kPanel; n += kFloats) {
    for (Index x = 0; x < channels; ++x) hn::StoreU(hn::Zero(d), d, panel + x * kPanel + n);
  }
}

inline void pack_q8(const StoredRows& k, Index keys, Index D, float* panel) {
  NoAhead none;
  pack_channels(Q8Rows(k), 0, keys, 0, D, panel, none);
}

#if HWY_TARGET == HWY_AVX3
// ---- scores of keys in registers ------------------------------------------------------------

// One or two blocks of channels of a panel's keys, as 4-byte words: words[word][key]. Only the
// registers that load_words has filled may be read.
struct Q8Words {
  alignas(64) float words[kTwoBlockWords][kPanel];
};

// Loads the words of one or two blocks (`channels` channels from channel c on) of keys first ..
// first + keys - 1.
HWY_NOINLINE void load_words(const Q8Rows& k, Index first, Index keys, Index c, Index channels,
                             Q8Words& to, LinesAhead& shared_ahead) {
  const Floats d;
  LinesAhead ahead = shared_ahead;
  const bool pair = channels > kQ8Numbers;
  for (Index n = 0; n < keys; n += kFloats) {
    const std::byte* rows = k.at(first + n, c);
    Index stride = k.stride;
    alignas(64) std::byte copy[kFloats * 2 * kQ8Bytes];
    if (n + kFloats > keys) {
      stride = 2 * kQ8Bytes;
      std::memset(copy, 0, sizeof(copy));
      for (Index r = 0; n + r < keys; ++r) {
        std::memcpy(copy + r * stride, rows + r * k.stride,
                    static_cast<std::size_t>(pair ? stride : kQ8Bytes));
      }
      rows = copy;
    }
    hn::Vec<Floats> words[kTwoBlockWords];
    if (pair) {
      transpose_lines(rows, stride, words);
      // The last word of each row is used last and is not worth vector instructions.
#pragma GCC unroll 16
      for (Index r = 0; r < kFloats; ++r) {
        std::memcpy(to.words[kTwoBlockWords - 1] + n + r, rows + r * stride + kLine, sizeof(float));
      }
    } else {
      words_of_block(rows, stride, words);
    }
#pragma GCC unroll 32
    for (int x = 0; x + 1 < kTwoBlockWords; ++x) {
      if (!pair && x > kTwoBlockWords / 2) break;
      if (x % 2 == 0) ahead.ask();
      hn::Store(words[x], d, to.words[x] + n);
    }
    ahead.ask();
  }
  shared_ahead = ahead;
}

// The largest number of query rows of a tile, and the number of registers of keys of a tile with
// kRows rows. The sums take at most 16 registers; the others hold scales and operands.
inline constexpr int kMostQ8Rows = 8;
template <int kRows>
inline constexpr int kQ8Registers = kRows <= 4 ? 4 : 2;
template <int kRows>
using TileScale = Q8Scale<widen_for(kRows)>;
template <int kRows, int kRegisters>
using Q8Sums = hn::Vec<Floats>[kRows][kRegisters];

// Adds to the sum of each query row r and each key the product of q[r * q_stride] and the number in
// byte `byte` of the key's word.
template <int kRows, int kRegisters>
HWY_INLINE void add_byte(const float* words, int byte, const TileScale<kRows> (&scales)[kRegisters],
                         const float* q, Index q_stride, Q8Sums<kRows, kRegisters>& acc) {
  const Floats d;
  // Keeps gcc from holding the address of each row, for which there are not enough registers.
  __asm__("" : "+r"(q_stride));
#pragma GCC unroll 4
  for (int x = 0; x < kRegisters; ++x) {
    const auto keys = number_of_word(hn::Load(d, words + x * kFloats), byte, scales[x]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      acc[r][x] = hn::MulAdd(hn::Set(d, q[r * q_stride]), keys, acc[r][x]);
    }
  }
}

// Adds the products of q and the numbers of `count` whole words. With kHalves, the upper half of
// one more word comes before them, and the lower half of one more word behind them.
template <int kRows, int kRegisters, bool kHalves>
HWY_INLINE void add_words(const float* words, int count,
                          const TileScale<kRows> (&scales)[kRegisters], const float* q,
                          Index q_stride, Q8Sums<kRows, kRegisters>& acc, LinesAhead& ahead) {
  if (kHalves) {
    add_byte<kRows>(words, 2, scales, q, q_stride, acc);
    add_byte<kRows>(words, 3, scales, q + 1, q_stride, acc);
    words += kPanel;
    q += 2;
  }
  // One cache line is prefetched for every two registers of words, as load_words does, too.
  for (int n = 0; n < count; ++n, words += kPanel, q += 4) {
    if (kRegisters > 1 || n % 2 == 0) ahead.ask();
    add_byte<kRows>(words, 0, scales, q, q_stride, acc);
    add_byte<kRows>(words, 1, scales, q + 1, q_stride, acc);
    if (kRegisters > 2) ahead.ask();
    add_byte<kRows>(words, 2, scales, q + 2, q_stride, acc);
    add_byte<kRows>(words, 3, scales, q + 3, q_stride, acc);
  }
  if (kHalves) {
    add_byte<kRows>(words, 0, scales, q, q_stride, acc);
    add_byte<kRows>(words, 1, scales, q + 1, q_stride, acc);
  }
}

// Sums one or two blocks of channels for kRows query rows and kRegisters registers of keys, in the
// order of scores_tile in kernels/tile-inl.h: s = scale * sum, or scale * (s + sum) if `adds`.
template <int kRows, int kRegisters>
HWY_NOINLINE void add_q8_scores(const float* words, bool pair, const float* q, Index q_stride,
                                bool adds, float scale, float* HWY_RESTRICT s, Index s_stride,
                                LinesAhead& shared_ahead) {
  const Floats d;
  LinesAhead ahead = shared_ahead;
  Q8Sums<kRows, kRegisters> acc;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int x = 0; x < kRegisters; ++x) acc[r][x] = hn::Zero(d);
  }
  TileScale<kRows> scales[kRegisters];
#pragma GCC unroll 4
  for (int x = 0; x < kRegisters; ++x) {
    scales[x] = TileScale<kRows>::of_lower(hn::Load(d, words + x * kFloats));
  }
  add_words<kRows, kRegisters, true>(words, 7, scales, q, q_stride, acc, ahead);
  if (pair) {
#pragma GCC unroll 4
    for (int x = 0; x < kRegisters; ++x) {
      scales[x] = TileScale<kRows>::of_upper(hn::Load(d, words + 8 * kPanel + x * kFloats));
    }
    add_words<kRows, kRegisters, false>(words + 9 * kPanel, 8, scales, q + kQ8Numbers, q_stride,
                                        acc, ahead);
  }
  const auto factor = hn::Set(d, scale);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int x = 0; x < kRegisters; ++x) {
      float* const to = s + r * s_stride + x * kFloats;
      if (adds) acc[r][x] = hn::Add(hn::LoadU(d, to), acc[r][x]);
      hn::StoreU(hn::Mul(acc[r][x], factor), d, to);
    }
  }
  shared_ahead = ahead;
}

// Calls add_q8_scores for all registers of up to kPanel keys. The last tiles have fewer registers
// of keys, down to one, because small pages hold only 16 keys.
template <int kRows>
void q8_scores_tile(const Q8Words& k, bool pair, const float* q, Index q_stride, bool adds,
                    float scale, float* s, Index s_stride, Index keys, LinesAhead& ahead) {
  Index n = 0;
  const auto next = [&]<int kRegisters>() HWY_ATTR {
    constexpr Index kEnough = (kRegisters - 1) * kFloats;
    for (; n + kEnough < keys; n += kRegisters * kFloats) {
      add_q8_scores<kRows, kRegisters>(k.words[0] + n, pair, q, q_stride, adds, scale, s + n,
                                       s_stride, ahead);
    }
  };
  if constexpr (kQ8Registers<kRows> == 4) next.template operator()<4>();
  next.template operator()<2>();
  next.template operator()<1>();
}

// Computes scores panel by panel, a block of channels at a time.
inline void q8_scores(const RowsOf<const float>& q, Index rows, Index D, const StoredRows& k,
                      Index keys, float scale, const RowsOf<float>& s, const ReadAhead& ahead) {
  constexpr Index kBlock = core::kChannelBlock;
  static_assert(kBlock == 2 * kQ8Numbers);
  using Tile = void (*)(const Q8Words&, bool, const float*, Index, bool, float, float*, Index,
                        Index, LinesAhead&);
  constexpr auto kTiles = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Tile, kMostQ8Rows>{&q8_scores_tile<kRows + 1>...};
  }(std::make_integer_sequence<int, kMostQ8Rows>());
  Q8Words words;
  const Q8Rows from(k);
  for (Index n = 0; n < keys; n += kPanel) {
    const Index some = std::min(kPanel, keys - n);
    LinesAhead lines(ahead, n, q.data);
    for (Index c = 0; c < D; c += kBlock) {
      const Index channels = std::min(kBlock, D - c);
      load_words(from, n, some, c, channels, words, lines);
      LinesAhead none({}, 0, q.data);
      for (Index r = 0; r < rows; r += kMostQ8Rows) {
        const Index tile = std::min<Index>(kMostQ8Rows, rows - r);
        kTiles[static_cast<std::size_t>(tile - 1)](
            words, channels == kBlock, q.data + r * q.stride + c, q.stride, c > 0,
            c + channels < D ? 1.0F : scale, s.data + r * s.stride + n, s.stride, some,
            r == 0 ? lines : none);
      }
    }
  }
}
#else
// Computes scores panel by panel, a block of channels at a time.
inline void q8_scores(const RowsOf<const float>& q, Index rows, Index D, const StoredRows& k,
                      Index keys, float scale, const RowsOf<float>& s, const ReadAhead& ahead) {
  constexpr Index kBlock = core::kChannelBlock;
  alignas(64) float panel[kBlock * kPanel];
  const Q8Rows from(k);
  for (Index n = 0; n < keys; n += kPanel) {
    const Index some = std::min(kPanel, keys - n);
    LinesAhead lines(ahead, n, q.data);
    for (Index c = 0; c < D; c += kBlock) {
      const Index channels = std::min(kBlock, D - c);
      pack_channels(from, n, some, c, channels, panel, lines);
      const RowsOf<const float> left{q.data + c, q.stride};
      const float factor = c + channels < D ? 1.0F : scale;
      if (some == kPanel) {
        add_scores<float>(left, rows, channels, panel, c > 0, factor, {s.data + n, s.stride});
        continue;
      }
      // add_scores writes whole panels, but s has room only to the end of the register of the last
      // key. The panel's scores are therefore computed in `part` and copied.
      alignas(64) float part[kTileRows * kPanel];
      const Index whole = core::round_up(some, kFloats);
      for (Index r = 0; r < rows; r += kTileRows) {
        const Index tile = std::min(kTileRows, rows - r);
        for (Index x = 0; x < tile && c > 0; ++x) {
          std::copy_n(s.data + (r + x) * s.stride + n, whole, part + x * kPanel);
        }
        add_scores<float>({left.data + r * q.stride, q.stride}, tile, channels, panel, c > 0,
                          factor, {part, kPanel});
        for (Index x = 0; x < tile; ++x) {
          std::copy_n(part + x * kPanel, whole, s.data + (r + x) * s.stride + n);
        }
      }
    }
  }
}
#endif

// ---- any storage type -----------------------------------------------------------------------

// Entries of the table of kernels (DotKernels), for rows of q8 and of all other stored types.
inline void pack_any_panel(const StoredRows& k, Index keys, Index D, float* panel) {
  if (k.dtype == DType::kQ8) return pack_q8(k, keys, D, panel);
  pack_panel<float>(k, keys, D, panel);
}

inline void any_stored_scores(const RowsOf<const float>& q, Index rows, Index D,
                              const StoredRows& k, Index keys, float scale, const RowsOf<float>& s,
                              const ReadAhead& ahead) {
  if (k.dtype == DType::kQ8) return q8_scores(q, rows, D, k, keys, scale, s, ahead);
  stored_scores<float>(q, rows, D, k, keys, scale, s, ahead);
}

inline void any_stored_sum(const RowsOf<const float>& w, Index rows, const StoredRows& v,
                           Index keys, Index E, const RowsOf<float>& acc, const ReadAhead& ahead) {
  if (v.dtype == DType::kQ8) return q8_sum(w, rows, v, keys, E, acc, ahead);
  stored_sum<float>(w, rows, v, keys, E, acc, ahead);
}

inline void widen_any(const StoredRows& x, Index rows, Index width, const RowsOf<float>& to) {
  if (x.dtype == DType::kQ8) return widen_q8(x, rows, width, to);
  widen<float>(x, rows, width, to);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
