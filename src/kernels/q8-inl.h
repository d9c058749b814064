// SPDX-License-Identifier: Apache-2.0
// Values of q8 (BlockQ8 in qkv/dtype.h), for each CPU target. As keys (kernels/q8_keys-inl.h), few
// queries use them in registers with AVX-512; else they are made float32 some at a time, in a
// buffer of the first-level cache, and from there on are what any others are.
#if defined(QKV_KERNELS_Q8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_Q8_INL_H_
#undef QKV_KERNELS_Q8_INL_H_
#else
#define QKV_KERNELS_Q8_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

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

// Rows of blocks, their stride in bytes.
struct Q8Rows {
  const std::byte* data = nullptr;
  Index stride = 0;

  explicit Q8Rows(const StoredRows& x)
      : data(static_cast<const std::byte*>(x.data)), stride(core::bytes_of(x.dtype, x.stride)) {}
  const std::byte* at(Index row, Index c) const {
    return data + row * stride + c / kQ8Numbers * kQ8Bytes;
  }
};

// ---- rows -----------------------------------------------------------------------------------

// The scale of a block in each lane.
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

// A register of a block's numbers from channel n on; `zero` is scale - scale: see core::load_q8.
HWY_INLINE hn::Vec<Floats> numbers_of(const std::byte* block, Index n, hn::Vec<Floats> scale,
                                      hn::Vec<Floats> zero) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<std::int8_t, Floats> d8;
  const auto* values = reinterpret_cast<const std::int8_t*>(block + sizeof(std::uint16_t));
  const auto whole = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, values + n)));
  return hn::MulAdd(scale, whole, zero);
}

// A block, channels along the lanes.
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
// Some rows' sums of kBlocks blocks of channels.
template <int kRows, int kBlocks>
HWY_NOINLINE void q8_sum_tile(const RowsOf<const float>& w, const std::byte* v, Index stride,
                              Index keys, const RowsOf<float>& acc, LinesAhead& shared_ahead) {
  const Floats d;
  constexpr int kVectors = static_cast<int>(kQ8Numbers / kFloats);
  LinesAhead ahead = shared_ahead;
  hn::Vec<Floats> sum[kRows][kBlocks][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kBlocks * kVectors; ++x) {
      sum[r][x / kVectors][x % kVectors] = hn::LoadU(d, acc.data + r * acc.stride + x * kFloats);
    }
  }
  for (Index n = 0; n < keys; ++n, v += stride) {
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      // 34 bytes: a line for every other block, and now and then one more.
      if (b % 2 == 0 || (kBlocks == 1 && n % 16 == 0)) ahead.ask();
      if (b == 0 && n % 8 == 0) ahead.ask();
      const std::byte* block = v + b * kQ8Bytes;
      const auto scale = scale_of(block);
      const auto zero = hn::Sub(scale, scale);
#pragma GCC unroll 8
      for (int x = 0; x < kVectors; ++x) {
        const auto values = numbers_of(block, x * kFloats, scale, zero);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sum[r][b][x] = hn::MulAdd(hn::Set(d, w.data[r * w.stride + n]), values, sum[r][b][x]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int x = 0; x < kBlocks * kVectors; ++x) {
      hn::StoreU(sum[r][x / kVectors][x % kVectors], d, acc.data + r * acc.stride + x * kFloats);
    }
  }
  shared_ahead = ahead;
}

template <int kRows>
void q8_sum_rows(const RowsOf<const float>& w, const Q8Rows& v, Index keys, Index E,
                 const RowsOf<float>& acc, LinesAhead& ahead) {
  constexpr int kMost = kRows <= 2 ? 4 : 2;
  Index c = 0;
  const auto next = [&]<int kBlocks>() HWY_ATTR {
    for (; c + kBlocks * kQ8Numbers <= E; c += kBlocks * kQ8Numbers) {
      q8_sum_tile<kRows, kBlocks>(w, v.at(0, c), v.stride, keys, {acc.data + c, acc.stride}, ahead);
    }
  };
  next.template operator()<kMost>();
  next.template operator()<2>();
  next.template operator()<1>();
}

inline void q8_sum(const RowsOf<const float>& w, Index rows, const StoredRows& v, Index keys,
                   Index E, const RowsOf<float>& acc, const ReadAhead& ahead) {
  constexpr void (*kByRows[])(const RowsOf<const float>&, const Q8Rows&, Index, Index,
                              const RowsOf<float>&,
                              LinesAhead&) = {&q8_sum_rows<1>, &q8_sum_rows<2>, &q8_sum_rows<3>,
                                              &q8_sum_rows<4>, &q8_sum_rows<5>, &q8_sum_rows<6>};
  LinesAhead lines(ahead, 0, w.data);
  kByRows[rows - 1](w, Q8Rows(v), keys, E, acc, lines);
}
#else
inline void q8_sum(const RowsOf<const float>& w, Index rows, const StoredRows& v, Index keys,
                   Index E, const RowsOf<float>& acc, const ReadAhead& ahead) {
  constexpr Index kKeys = 16;
  constexpr Index kChannels = 128;
  alignas(64) float block[kKeys * kChannels];
  const Q8Rows from(v);
  LinesAhead lines(ahead, 0, w.data);
  Index unasked = 0;  // bytes read since a line was asked for
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
