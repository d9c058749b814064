// SPDX-License-Identifier: Apache-2.0
// Loads and transposes numbers in the type in which they are stored, for each CPU target.
#if defined(QKV_KERNELS_STORED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_STORED_INL_H_
#undef QKV_KERNELS_STORED_INL_H_
#else
#define QKV_KERNELS_STORED_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "kernels/dot_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- single registers -----------------------------------------------------------------------

// Converts the bfloat16 or float16 number in the lower 16 bits of each 32-bit lane to float32. The
// upper bits are ignored.
template <class D, class U = hn::Vec<hn::RebindToUnsigned<D>>>
HWY_INLINE hn::Vec<D> widen_lower(D d, U bits, const BFloat16*) {
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}
template <class D, class U = hn::Vec<hn::RebindToUnsigned<D>>>
HWY_INLINE hn::Vec<D> widen_lower(D d, U bits, const Float16*) {
  const hn::RebindToUnsigned<D> d32;
#if HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4
  // SSE4 and older targets have no F16C, and Highway's conversion without it is wrong for infinity.
  const hn::RebindToSigned<D> di;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000U)));
  const auto exponent = hn::And(bits, hn::Set(d32, 0x7C00U));
  const auto fraction = hn::And(bits, hn::Set(d32, 0x3FFU));
  const auto subnormal =
      hn::BitCast(d32, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, fraction)), hn::Set(d, 0x1p-24F)));
  const auto rebased = hn::Add(hn::ShiftLeft<13>(exponent), hn::Set(d32, (127U - 15U) << 23));
  const auto power =
      hn::IfThenElse(hn::Eq(exponent, hn::Set(d32, 0x7C00U)), hn::Set(d32, 0x7F800000U), rebased);
  const auto normal = hn::Or(power, hn::ShiftLeft<13>(fraction));
  const auto value = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d32)), subnormal, normal);
  return hn::BitCast(d, hn::Or(sign, value));
#else
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  const auto lower = hn::TruncateTo(d16, hn::And(bits, hn::Set(d32, 0xFFFFU)));
  return hn::PromoteTo(d, hn::BitCast(half, lower));
#endif
}

// Converts the bfloat16 or float16 number in the upper 16 bits of each 32-bit lane to float32.
template <class D, class U = hn::Vec<hn::RebindToUnsigned<D>>>
HWY_INLINE hn::Vec<D> widen_upper(D d, U bits, const BFloat16*) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xFFFF0000U)));
}
template <class D, class U = hn::Vec<hn::RebindToUnsigned<D>>>
HWY_INLINE hn::Vec<D> widen_upper(D d, U bits, const Float16* type) {
  return widen_lower(d, hn::ShiftRight<16>(bits), type);
}

// Loads one register of numbers, converted to the type of D.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_stored(D d, const T* from) {
  return hn::LoadU(d, from);
}
template <class D, class Stored>
  requires(sizeof(Stored) == 2)
HWY_INLINE hn::Vec<D> load_stored(D d, const Stored* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return widen_lower(d, hn::PromoteTo(d32, bits), from);
}

// Loads the first n lanes of a register and sets the others to 0. Memory behind the n numbers is
// not read.
template <class D, class Stored>
HWY_INLINE hn::Vec<D> load_stored_part(D d, const Stored* from, Index n) {
  using T = hn::TFromD<D>;
#if HWY_MAX_BYTES > 16
  if constexpr (sizeof(Stored) == sizeof(T)) {
    return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(n)), d, from);
  }
#endif
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(Stored) == 2) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::MaskedLoad(hn::FirstN(d16, static_cast<std::size_t>(n)), d16,
                                     reinterpret_cast<const std::uint16_t*>(from));
    return widen_lower(d, hn::PromoteTo(d32, bits), from);
  }
#endif
  Stored lanes[HWY_MAX_BYTES / sizeof(T)] = {};
  std::copy_n(from, n, lanes);
  return load_stored(d, lanes);
}

// ---- transposition --------------------------------------------------------------------------

// Loads kBytes bytes into one register: its block m, of 16 bytes, from address `from` + m * step.
template <class T, int kBytes>
HWY_INLINE hn::Vec<hn::CappedTag<T, kBytes / sizeof(T)>> gather_blocks(const std::byte* from,
                                                                       Index step) {
  const hn::CappedTag<T, kBytes / sizeof(T)> d;
  if constexpr (kBytes == 16) {
    return hn::LoadU(d, reinterpret_cast<const T*>(from));
  } else {
    constexpr Index kHalf = kBytes / 32;
    return hn::Combine(d, gather_blocks<T, kBytes / 2>(from + kHalf * step, step),
                       gather_blocks<T, kBytes / 2>(from, step));
  }
}

// Transposes the first 16 bytes of each row in words of 4 (for double, 8) bytes: lane r of to[c] is
// word c of row r. So each 16-byte block of to[c] holds words of four (two) consecutive rows.
HWY_INLINE void transpose_words(const std::byte* rows, Index stride,
                                hn::Vec<hn::ScalableTag<float>>* to) {
  const hn::ScalableTag<float> d;
  const auto a = gather_blocks<float, HWY_MAX_BYTES>(rows, 4 * stride);
  const auto b = gather_blocks<float, HWY_MAX_BYTES>(rows + stride, 4 * stride);
  const auto c = gather_blocks<float, HWY_MAX_BYTES>(rows + 2 * stride, 4 * stride);
  const auto e = gather_blocks<float, HWY_MAX_BYTES>(rows + 3 * stride, 4 * stride);
  const hn::Repartition<double, decltype(d)> dd;
  const auto pairs = [&](auto x, auto y)
                         HWY_ATTR { return hn::BitCast(dd, hn::InterleaveLower(d, x, y)); };
  const auto upper_pairs = [&](auto x, auto y)
                               HWY_ATTR { return hn::BitCast(dd, hn::InterleaveUpper(d, x, y)); };
  // a0 b0 a1 b1 and c0 e0 c1 e1 give a0 b0 c0 e0, a1 b1 c1 e1.
  const auto ab = pairs(a, b);
  const auto ce = pairs(c, e);
  const auto ab2 = upper_pairs(a, b);
  const auto ce2 = upper_pairs(c, e);
  to[0] = hn::BitCast(d, hn::InterleaveLower(dd, ab, ce));
  to[1] = hn::BitCast(d, hn::InterleaveUpper(dd, ab, ce));
  to[2] = hn::BitCast(d, hn::InterleaveLower(dd, ab2, ce2));
  to[3] = hn::BitCast(d, hn::InterleaveUpper(dd, ab2, ce2));
}
HWY_INLINE void transpose_words(const std::byte* rows, Index stride,
                                hn::Vec<hn::ScalableTag<double>>* to) {
  const hn::ScalableTag<double> d;
  const auto a = gather_blocks<double, HWY_MAX_BYTES>(rows, 2 * stride);
  const auto b = gather_blocks<double, HWY_MAX_BYTES>(rows + stride, 2 * stride);
  to[0] = hn::InterleaveLower(d, a, b);
  to[1] = hn::InterleaveUpper(d, a, b);
}

#if HWY_TARGET == HWY_AVX3
// Transposes the 4-byte words of a cache line of each of 16 rows, with a quarter of the loads that
// transpose_words takes.
HWY_INLINE void transpose_lines(const std::byte* rows, Index stride,
                                hn::Vec<hn::ScalableTag<float>>* to) {
  // Keeps gcc from holding 16 addresses, for which there are not enough registers.
  __asm__("" : "+r"(stride));
  __m512 x[16];
  __m512 y[16];
  // Quarter q of y[g + c] becomes word 4q + c of rows g .. g + 3.
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    const std::byte* four = rows + r / 4 * 4 * stride;
    const __m512 even = _mm512_loadu_ps(four + r % 4 * stride);
    const __m512 odd = _mm512_loadu_ps(four + (r % 4 + 1) * stride);
    x[r] = _mm512_unpacklo_ps(even, odd);
    x[r + 1] = _mm512_unpackhi_ps(even, odd);
  }
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const __m512d first = _mm512_castps_pd(x[g + c]);
      const __m512d second = _mm512_castps_pd(x[g + 2 + c]);
      y[g + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
      y[g + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
    }
  }
  // Word 4q + c of all rows, to[4q + c], is quarter q of y[c], y[4 + c], y[8 + c] and y[12 + c].
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(y[c], y[4 + c], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0x44);
    const __m512 e = _mm512_shuffle_f32x4(y[c], y[4 + c], 0xEE);
    const __m512 f = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0xEE);
    to[c].raw = _mm512_shuffle_f32x4(a, b, 0x88);
    to[4 + c].raw = _mm512_shuffle_f32x4(a, b, 0xDD);
    to[8 + c].raw = _mm512_shuffle_f32x4(e, f, 0x88);
    to[12 + c].raw = _mm512_shuffle_f32x4(e, f, 0xDD);
  }
}
#endif

// kStepBytes bytes of each of as many rows as a register has lanes, transposed: lane r of words[w]
// is word w of row r. A word has the size of T: it is one channel, or two of 16 bits.
template <class T, class Stored, int kStepBytes>
struct Step {
  using V = hn::Vec<hn::ScalableTag<T>>;
  static constexpr int kBytes = kStepBytes;
  static constexpr int kChannels = kBytes / sizeof(Stored);
  V words[kBytes / sizeof(T)];

  // Transposes the first kStepBytes bytes of each row.
  HWY_INLINE Step(const Stored* rows, Index stride) {
    const auto* first = reinterpret_cast<const std::byte*>(rows);
    const Index byte_stride = stride * static_cast<Index>(sizeof(Stored));
#if HWY_TARGET == HWY_AVX3
    if constexpr (kBytes == kLine) transpose_lines(first, byte_stride, words);
#endif
    if constexpr (kBytes == 16) transpose_words(first, byte_stride, words);
  }
  // Lane n of the result is channel c of row n. `c` is a constant where loops are unrolled.
  HWY_INLINE V channel(int c) const {
    if constexpr (sizeof(Stored) == sizeof(T)) {
      return words[c];
    } else {
      const hn::ScalableTag<T> d;
      const auto bits = hn::BitCast(hn::RebindToUnsigned<decltype(d)>(), words[c / 2]);
      constexpr const Stored* kType = nullptr;
      return c % 2 == 0 ? widen_lower(d, bits, kType) : widen_upper(d, bits, kType);
    }
  }
};

// The number of bytes of a row that are transposed at a time, as long as the row has so many left.
template <class T>
inline constexpr int kWideStep = HWY_TARGET == HWY_AVX3 && sizeof(T) == 4 ? 64 : 16;

// The number of channels of a step that have as many bytes, in all rows of the step together, as a
// cache line.
template <class Channels, class T>
inline constexpr int kChannelsOfLine =
    Channels::kChannels * int{kLine} /
    (static_cast<int>(HWY_MAX_BYTES / sizeof(T)) * Channels::kBytes);

// ---- memory ahead ---------------------------------------------------------------------------

// Prefetches the cache lines of rows that will be read later, one at a time, row by row: many
// prefetches at once wait for each other, and loads that are needed now wait for them.
class LinesAhead {
 public:
  // Begins with row n of `ahead`. `any` is memory that is in use anyway: it is prefetched if
  // `ahead` is empty.
  LinesAhead(const ReadAhead& ahead, Index n, const void* any) {
    if (ahead.bytes > 0) {
      at_ = ahead.data + n * ahead.stride;
      bytes_ = ahead.bytes;
      stride_ = ahead.stride;
    } else {
      at_ = static_cast<const std::byte*>(any);
    }
    // Rows without gaps are treated as one long row.
    if (bytes_ == stride_) {
      bytes_ *= kMostRows;
      stride_ = bytes_;
    }
    whole_ = bytes_ / kLine * kLine;
    end_ = at_ + whole_;
  }

  // Prefetches the next line, and with the last whole line of a row the line of its last byte: else
  // rows that end within a line, as rows of q8 do, would need more calls than lines are read.
  HWY_INLINE void ask() {
    __builtin_prefetch(at_);
    at_ += kLine;
    if (at_ < end_) return;
    at_ = end_ - whole_;
    __builtin_prefetch(at_ + bytes_ - 1);
    at_ += stride_;
    end_ += stride_;
  }

 private:
  static constexpr Index kMostRows = 64;
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;  // end of this row's whole lines
  Index stride_ = 0;
  Index bytes_ = kLine;  // bytes of a row
  Index whole_ = kLine;  // bytes of a row's whole lines
};

// ---- any storage type -----------------------------------------------------------------------

// Calls f with x.data as a pointer to the stored type, which may be any type that loops for T read
// in place (is_read_in_place) except q8.
template <class T, class F>
HWY_INLINE void visit_stored(const StoredRows& x, const F& f) {
  if constexpr (sizeof(T) == 4) {
    if (x.dtype == DType::kBFloat16) return f(static_cast<const BFloat16*>(x.data));
    if (x.dtype == DType::kFloat16) return f(static_cast<const Float16*>(x.data));
  }
  f(static_cast<const T*>(x.data));
}

template <class T>
void widen(const StoredRows& x, Index rows, Index width, const RowsOf<T>& to) {
  visit_stored<T>(x, [&]<class Stored>(const Stored* from) HWY_ATTR {
    const hn::ScalableTag<T> d;
    constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
    for (Index r = 0; r < rows; ++r) {
      const Stored* row = from + r * x.stride;
      T* out = to.data + r * to.stride;
      Index c = 0;
      for (; c + kLanes <= width; c += kLanes) hn::StoreU(load_stored(d, row + c), d, out + c);
      if (c == width) continue;
      HWY_ALIGN T lanes[kLanes];
      hn::Store(load_stored_part(d, row + c, width - c), d, lanes);
      std::copy_n(lanes, width - c, out + c);
    }
  });
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
