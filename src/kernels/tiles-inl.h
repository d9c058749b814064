// SPDX-License-Identifier: Apache-2.0
// AMX tiles, and an emulation of them by AVX-512 instructions with the same arithmetic.
#ifndef QKV_KERNELS_TILES_INL_H_
#define QKV_KERNELS_TILES_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <hwy/highway.h>

#include "kernels/amx_kernels.h"
#include "kernels/words-inl.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace qkv::kernels::HWY_NAMESPACE {

// The largest number of rows of a tile, and also of 32-bit elements of a row.
inline constexpr Index kTileSide = 16;
inline constexpr int kTiles = 8;

inline constexpr TileShape kFullTiles{kTileSide, kTileSide, kTileSide};

// The tiles' use in products c += a b: tiles 0 .. kSums - 1 hold c, tile kLeft holds a, and tiles
// from kFirstRight on hold b.
inline constexpr int kSums = 4;
inline constexpr int kLeft = 4;
inline constexpr int kFirstRight = 5;

// The functions of HardwareTiles and EmulatedTiles; strides are in bytes:
//   shape(s)               sets the tiles' shape; if s is another shape, their contents are lost
//   zero<n>()              sets tile n, one of c, to +0
//   load<n>(p, stride)     reads tile n from p
//   stream<n>(p, stride)   reads tile n from p, where its memory is not needed again soon
//   store<n>(p, stride)    writes tile n to p
//   multiply<c, b>()       adds the AMX products of tile kLeft and tile b to tile c

// ---- tiles of the CPU -------------------------------------------------------------------------

// The layout of LDTILECFG's operand, of 64 bytes (Intel, Software Developer's Manual, volume 2).
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

class HardwareTiles {
 public:
  static void shape(const TileShape& wanted) {
    if (HWY_LIKELY(configured_shape == wanted)) return;
    configure(wanted);
  }
  // The instructions are written as assembly: the compilers' own functions need these instructions
  // enabled for whole files, and gcc 12 assumes that LDTILECFG reads 8 bytes, while it reads 64.
  template <int n>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(n));
  }
  template <int n>
  static void load(const void* from, Index stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(n) : "memory");
  }
  template <int n>
  static void stream(const void* from, Index stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(n) : "memory");
  }
  template <int n>
  static void store(void* to, Index stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(n) : "memory");
  }
  template <int c, int b>
  static void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(b), "i"(kLeft), "i"(c));
  }

 private:
  HWY_NOINLINE static void configure(const TileShape& wanted) {
    TileConfiguration to;
    for (int n = 0; n < kTiles; ++n) {
      const bool is_right = n >= kFirstRight;
      to.rows[n] = static_cast<std::uint8_t>(is_right ? wanted.words : wanted.rows);
      to.row_bytes[n] =
          static_cast<std::uint16_t>(4 * (n == kLeft ? wanted.words : wanted.columns));
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(to));
    configured_shape = wanted;
  }
};

// ---- tiles in AVX-512 -------------------------------------------------------------------------

// While an object of this class lives, vector instructions replace subnormal operands and tiny
// results by zeros, as AMX does.
class FlushesSubnormals {
 public:
  FlushesSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kZeroInputs); }
  FlushesSubnormals(const FlushesSubnormals&) = delete;
  FlushesSubnormals& operator=(const FlushesSubnormals&) = delete;
  ~FlushesSubnormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 1U << 15;
  static constexpr unsigned kZeroInputs = 1U << 6;
  const unsigned before_;
};

// first_of() returns the first (lower) BF16 numbers of 16 words as float32, second_of() the second.
HWY_INLINE __m512 first_of(__m512 words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(words), 16));
}
HWY_INLINE __m512 second_of(__m512 words) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(words), _mm512_set1_epi32(-0x10000)));
}

class EmulatedTiles {
 public:
  // Another shape fills the tiles with NaN, whereas it fills the CPU's tiles with zeros, so that a
  // kernel that relies on zeros gives wrong results here.
  void shape(const TileShape& wanted) {
    if (shape_ == wanted) return;
    shape_ = wanted;
    std::fill_n(&tile_[0][0][0], kTiles * kTileSide * kTileSide,
                std::numeric_limits<float>::quiet_NaN());
  }
  template <int n>
  void zero() {
    for (Index r = 0; r < shape_.rows; ++r) _mm512_store_ps(tile_[n][r], _mm512_setzero_ps());
  }
  template <int n>
  void load(const void* from, Index stride) {
    const __mmask16 some = first_words(n == kLeft ? shape_.words : shape_.columns);
    for (Index r = 0; r < (n >= kFirstRight ? shape_.words : shape_.rows); ++r) {
      _mm512_store_ps(tile_[n][r], _mm512_maskz_loadu_ps(
                                       some, static_cast<const std::byte*>(from) + r * stride));
    }
  }
  template <int n>
  void stream(const void* from, Index stride) {
    load<n>(from, stride);
  }
  template <int n>
  void store(void* to, Index stride) {
    const __mmask16 some = first_words(shape_.columns);
    for (Index r = 0; r < shape_.rows; ++r) {
      _mm512_mask_storeu_ps(static_cast<std::byte*>(to) + r * stride, some,
                            _mm512_load_ps(tile_[n][r]));
    }
  }
  template <int c, int b>
  void multiply() {
    const FlushesSubnormals mode;
    add_products(tile_[kLeft][0], tile_[b][0], shape_, tile_[c][0]);
  }

 private:
  // Not inlined, since compilers may move arithmetic across a change of the mode.
  HWY_NOINLINE static void add_products(const float* a, const float* b, const TileShape& shape,
                                        float* c) {
    for (Index r = 0; r < shape.rows; ++r, a += kTileSide, c += kTileSide) {
      __m512 even = _mm512_setzero_ps();
      __m512 odd = _mm512_setzero_ps();
      for (Index m = 0; m < shape.words; ++m) {
        const __m512 left = _mm512_set1_ps(a[m]);
        const __m512 right = _mm512_load_ps(b + m * kTileSide);
        even = _mm512_fmadd_ps(first_of(left), first_of(right), even);
        odd = _mm512_fmadd_ps(second_of(left), second_of(right), odd);
      }
      _mm512_store_ps(c, _mm512_add_ps(_mm512_load_ps(c), _mm512_add_ps(even, odd)));
    }
  }

  TileShape shape_;
  alignas(64) float tile_[kTiles][kTileSide][kTileSide];
};

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QKV_KERNELS_TILES_INL_H_
