// SPDX-License-Identifier: Apache-2.0
// Values stored as q8 (BlockQ8 in qkv/dtype.h), for each CPU target. For few queries, AVX-512
// converts values in registers, as it does keys (kernels/q8_keys-inl.h). Other targets convert a
// block of values at a time to float32, in a buffer that stays in the first-level cache, and run
// the loops for float32 on it.
#if defined(QKV_KERNELS_Q8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_Q8_INL_H_
#undef QKV_KERNELS_Q8_INL_H_
#else
#define QKV_KERNELS_Q8_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <hwy/highway.h>

#include "core/integers.h"
#include "kernels/dot_kernels.h"
#include "kernels/stored-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr Index kQ8Numbers = BlockQ8::kNumbers;
inline constexpr Index kQ8Bytes = sizeof(BlockQ8);

using Floats = hn::ScalableTag<float>;
inline constexpr Index kFloats = HWY_MAX_BYTES / sizeof(float);

// Rows of q8 blocks; the stride is in bytes.
struct Q8Rows {
  const std::byte* data = nullptr;
  Index stride = 0;

  explicit Q8Rows(const StoredRows& x)
      : data(static_cast<const std::byte*>(x.data)), stride(core::bytes_of(x.dtype, x.stride)) {}
  const std::byte* at(Index row, Index c) const {
    return data + row * stride + c / kQ8Numbers * kQ8Bytes;
  }
};

// ---- numbers --------------------------------------------------------------------------------

// Two ways to convert a byte of a word to its number: by operations on its bits, which take fewer
// instructions, or by a conversion from integers. On AVX-512 the first is faster if each number is
// used once or twice. With more uses multiply-adds bound the loop, and conversions are free on a
// CPU that has other units for them.
enum class Widen { kByBits, kByConversion };
inline constexpr Widen widen_for(int uses) {
  return HWY_TARGET == HWY_AVX3 && uses <= 2 ? Widen::kByBits : Widen::kByConversion;
}

// A scale in each lane, and the number that is added to products with the scale.
template <Widen kWiden>
struct Q8Scale {
  hn::Vec<Floats> factor;
  hn::Vec<Floats> addend;

  Q8Scale() = default;
  HWY_INLINE explicit Q8Scale(hn::Vec<Floats> scale) : factor(scale) {
    if constexpr (kWiden == Widen::kByBits) {
      addend = hn::Mul(scale, hn::Set(Floats(), -kOffset));
    } else {
      addend = hn::Sub(scale, scale);  // 0, or NaN for a non-finite scale: see core::load_q8
    }
  }
  // Makes a Q8Scale of the scale in the lower or upper half of each word.
  HWY_INLINE static Q8Scale of_lower(hn::Vec<Floats> word) {
    const hn::RebindToUnsigned<Floats> du;
    constexpr const Float16* kScale = nullptr;
    return Q8Scale(widen_lower(Floats(), hn::BitCast(du, word), kScale));
  }
  HWY_INLINE static Q8Scale of_upper(hn::Vec<Floats> word) {
    const hn::RebindToUnsigned<Floats> du;
    constexpr const Float16* kScale = nullptr;
    return Q8Scale(widen_upper(Floats(), hn::BitCast(du, word), kScale));
  }
  static constexpr float kOffset = 32768 + 128;
};

// Returns the number that is byte `byte` of each 4-byte word.
template <Widen kWiden>
HWY_INLINE hn::Vec<Floats> number_of_word(hn::Vec<Floats> word, int byte,
                                          const Q8Scale<kWiden>& scale) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kWiden == Widen::kByBits) {
    // Byte x becomes the float32 2^15 + 128 + x without a conversion: with exponent 15, bits 8..15
    // of the mantissa count 1, 2, .. 128. Subtracting the scale times 2^15 + 128, which is exact,
    // leaves scale times x.
    __m512i bits = _mm512_castps_si512(word.raw);
    bits = byte == 0   ? _mm512_slli_epi32(bits, 8)
           : byte == 1 ? bits
           : byte == 2 ? _mm512_srli_epi32(bits, 8)
                       : _mm512_srli_epi32(bits, 16);
    constexpr int kAndXor = 0x6A;  // (first & second) ^ last: the first is overwritten
    bits = _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(0xFF00), _mm512_set1_epi32(0x47008000),
                                     kAndXor);
    return hn::MulAdd(hn::Vec<Floats>{_mm512_castsi512_ps(bits)}, scale.factor, scale.addend);
  }
#endif
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  auto bits = hn::BitCast(di, word);
  bits = byte == 0   ? hn::ShiftLeft<24>(bits)
         : byte == 1 ? hn::ShiftLeft<16>(bits)
         : byte == 2 ? hn::ShiftLeft<8>(bits)
                     : bits;
  return hn::MulAdd(hn::ConvertTo(d, hn::ShiftRight<24>(bits)), scale.factor, scale.addend);
}

// ---- rows -----------------------------------------------------------------------------------

// Returns the scale of a block in each lane.
HWY_INLINE hn::Vec<Floats> scale_of(const std::byte* block) {
  std::uint16_t bits;
  std::memcpy(&bits, block, sizeof(bits));
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<Floats>{
      _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_set1_epi16(static_cast<std::int16_t>(bits))))};
#else
  const hn::RebindToUnsigned<Floats> du;
  constexpr const Float16* kScale = nullptr;
  return widen_lower(Floats(), hn::Set(du, bits), kScale);
#endif
}

// Returns a register of a block's numbers from number n on; `zero` is scale - scale, as in
// core::load_q8.
HWY_INLINE hn::Vec<Floats> numbers_of(const std::byte* block, Index n, hn::Vec<Floats> scale,
                                      hn::Vec<Floats> zero) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<std::int8_t, Floats> d8;
  const auto* values = reinterpret_cast<const std::int8_t*>(block + sizeof(std::uint16_t));
  const auto whole = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, values + n)));
  return hn::MulAdd(scale, whole, zero);
}

// Converts a block to float32, channels along the lanes.
HWY_INLINE void widen_block(const std::byte* from, float* HWY_RESTRICT to) {
  const Floats d;
  const auto scale = scale_of(from);
  const auto zero = hn::Sub(scale, scale);
#pragma GCC unroll 8
  for (Index n = 0; n < kQ8Numbers; n += kFloats) {
    hn::StoreU(numbers_of(from, n, scale, zero), d, to + n);
  }
}

inline void widen_q8(const StoredRows& x, Index rows, Index width, const RowsOf<float>& to) {
  const Q8Rows from(x);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < width; c += kQ8Numbers) {
      widen_block(from.at(r, c), to.data + r * to.stride + c);
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// ---- sums of values in registers ------------------------------------------------------------

// Channel 4 n + m of two blocks (64 channels) is byte m of word n of a register. So there is a
// register of sums for each m, and no byte is moved to another word.
inline constexpr int kWordBytes = 4;
inline constexpr Index kTwoBlocks = 2 * kQ8Numbers;

// Loads the scales and words of two blocks, or of one block (the upper 8 words are undefined).
template <bool kTwo, Widen kWiden>
HWY_INLINE hn::Vec<Floats> words_of_values(const std::byte* blocks, Q8Scale<kWiden>& scale) {
  const auto scales = [](const std::byte* block) HWY_ATTR {
    std::uint16_t bits;
    std::memcpy(&bits, block, sizeof(bits));
    return _mm256_set1_epi16(static_cast<std::int16_t>(bits));
  };
  const auto numbers = [](const std::byte* block) HWY_ATTR {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + sizeof(std::uint16_t)));
  };
  __m256i halves = scales(blocks);
  __m512i words = _mm512_castsi256_si512(numbers(blocks));
  if constexpr (kTwo) {
    constexpr int kUpperHalf = 0xF0;
    halves = _mm256_blend_epi32(halves, scales(blocks + kQ8Bytes), kUpperHalf);
    words = _mm512_inserti64x4(words, numbers(blocks + kQ8Bytes), 1);
  }
  scale = Q8Scale<kWiden>(hn::Vec<Floats>{_mm512_cvtph_ps(halves)});
  return {_mm512_castsi512_ps(words)};
}

// Adds weighted values to some rows' sums of one or two blocks of channels, for bytes kFirst ..
// kFirst + kBytes - 1 of each word. Row r's sum of byte m of word n is in sums[r][m][n].
using Q8RowSums = float[kWordBytes][kFloats];
template <int kRows, int kFirst, int kBytes, bool kTwo, class Ahead>
HWY_NOINLINE void q8_sum_tile(const float* HWY_RESTRICT w, Index w_stride, const std::byte* v,
                              Index stride, Index keys, Q8RowSums* HWY_RESTRICT sums,
                              Ahead& shared_ahead) {
  const Floats d;
  Ahead ahead = shared_ahead;
  hn::Vec<Floats> sum[kRows][kBytes];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int m = 0; m < kBytes; ++m) sum[r][m] = hn::Load(d, sums[r][kFirst + m]);
  }
  for (Index n = 0; n < keys; ++n, v += stride) {
    // Two blocks have 68 bytes: a cache line and a 16th of another; one block has half of that.
    if (kTwo || n % 2 == 0) ahead.ask();
    if (n % 16 == 0) ahead.ask();
    Q8Scale<widen_for(kRows)> scale;
    const auto words = words_of_values<kTwo>(v, scale);
#pragma GCC unroll 4
    for (int m = 0; m < kBytes; ++m) {
      const auto values = number_of_word(words, kFirst + m, scale);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[r][m] = hn::MulAdd(hn::Set(d, w[r * w_stride + n]), values, sum[r][m]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int m = 0; m < kBytes; ++m) hn::Store(sum[r][m], d, sums[r][kFirst + m]);
  }
  shared_ahead = ahead;
}

// The largest number of rows of a tile. Up to 6 rows have the sums of all 4 bytes in registers, 7
// and 8 rows those of 2 bytes at a time.
inline constexpr int kMostQ8SumRows = 8;
template <int kRows, bool kTwo, class Ahead>
void q8_sum_rows(const float* w, Index w_stride, const std::byte* v, Index stride, Index keys,
                 Q8RowSums* sums, Ahead& ahead) {
  if constexpr (kRows <= 6) {
    q8_sum_tile<kRows, 0, 4, kTwo>(w, w_stride, v, stride, keys, sums, ahead);
  } else {
    q8_sum_tile<kRows, 0, 2, kTwo>(w, w_stride, v, stride, keys, sums, ahead);
    NoAhead none;
    q8_sum_tile<kRows, 2, 2, kTwo>(w, w_stride, v, stride, keys, sums, none);
  }
}

// Adds the weighted sums of one or two blocks of channels for up to kMostQ8SumRows rows.
template <bool kTwo, class Ahead>
void q8_sum_blocks(const RowsOf<const float>& w, Index rows, const std::byte* v, Index stride,
                   Index keys, const RowsOf<float>& acc, Ahead& ahead) {
  using Rows = void (*)(const float*, Index, const std::byte*, Index, Index, Q8RowSums*, Ahead&);
  constexpr auto kByRows = []<int... kRows>(std::integer_sequence<int, kRows...>) {
    return std::array<Rows, kMostQ8SumRows>{&q8_sum_rows<kRows + 1, kTwo, Ahead>...};
  }(std::make_integer_sequence<int, kMostQ8SumRows>());
  const Floats d;
  alignas(64) Q8RowSums sums[kMostQ8SumRows];
  alignas(64) float padded[kTwoBlocks] = {};  // one block's numbers, padded
  hn::Vec<Floats> x[kWordBytes];
  for (Index r = 0; r < rows; ++r) {
    const float* const from = acc.data + r * acc.stride;
    if (!kTwo) std::copy_n(from, kQ8Numbers, padded);
    hn::LoadInterleaved4(d, kTwo ? from : padded, x[0], x[1], x[2], x[3]);
#pragma GCC unroll 4
    for (int m = 0; m < kWordBytes; ++m) hn::Store(x[m], d, sums[r][m]);
  }
  kByRows[static_cast<std::size_t>(rows - 1)](w.data, w.stride, v, stride, keys, sums, ahead);
  for (Index r = 0; r < rows; ++r) {
    float* const to = acc.data + r * acc.stride;
#pragma GCC unroll 4
    for (int m = 0; m < kWordBytes; ++m) x[m] = hn::Load(d, sums[r][m]);
    hn::StoreInterleaved4(x[0], x[1], x[2], x[3], d, kTwo ? to : padded);
    if (!kTwo) std::copy_n(padded, kQ8Numbers, to);
  }
}

// Adds the weighted sums of any number of rows. Values that are read again for further rows are
// still in the first-level cache, since a call has few keys.
inline void q8_sum(const RowsOf<const float>& w, Index rows, const StoredRows& v, Index keys,
                   Index E, const RowsOf<float>& acc, const ReadAhead& ahead) {
  const Q8Rows from(v);
  LinesAhead lines(ahead, 0, w.data);
  NoAhead none;
  const Index pieces = core::divide_up(rows, kMostQ8SumRows);
  const Index most = core::divide_up(rows, pieces);
  for (Index c = 0; c < E; c += kTwoBlocks) {
    for (Index r = 0; r < rows; r += most) {
      const auto sum = [&](auto& asks) HWY_ATTR {
        const auto blocks = E - c >= kTwoBlocks
                                ? &q8_sum_blocks<true, std::remove_reference_t<decltype(asks)>>
                                : &q8_sum_blocks<false, std::remove_reference_t<decltype(asks)>>;
        blocks({w.data + r * w.stride, w.stride}, std::min(most, rows - r), from.at(0, c),
               from.stride, keys, {acc.data + r * acc.stride + c, acc.stride}, asks);
      };
      if (r == 0) {
        sum(lines);
      } else {
        sum(none);
      }
    }
  }
}
#else
inline void q8_sum(const RowsOf<const float>& w, Index rows, const StoredRows& v, Index keys,
                   Index E, const RowsOf<float>& acc, const ReadAhead& ahead) {
  constexpr Index kKeys = 16;
  constexpr Index kChannels = 128;
  alignas(64) float block[kKeys * kChannels];
  const Q8Rows from(v);
  LinesAhead lines(ahead, 0, w.data);
  Index unasked = 0;  // bytes read since the last prefetch
  for (Index n = 0; n < keys; n += kKeys) {
    const Index some = std::min(kKeys, keys - n);
    for (Index c = 0; c < E; c += kChannels) {
      const Index width = std::min(kChannels, E - c);
      for (Index x = 0; x < some; ++x) {
        for (Index b = 0; b < width; b += kQ8Numbers) {
          widen_block(from.at(n + x, c + b), block + x * kChannels + b);
          unasked += kQ8Bytes;
          if (unasked < kLine) continue;
          unasked -= kLine;
          lines.ask();
        }
      }
      weighted_sum<float>({w.data + n, w.stride}, rows, {block, kChannels}, some, width,
                          {acc.data + c, acc.stride});
    }
  }
}
#endif

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
