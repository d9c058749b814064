// SPDX-License-Identifier: Apache-2.0
// Operations on rows of scores and weights, between the products q k^T and w v, for each CPU
// target.
#if defined(QKV_KERNELS_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_ROW_INL_H_
#undef QKV_KERNELS_ROW_INL_H_
#else
#define QKV_KERNELS_ROW_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/dot_kernels.h"
#include "kernels/exp-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- scores ---------------------------------------------------------------------------------

template <class T>
void add_bias(T* s, const T* bias, Index n) {
  for_each_vector<T>(n, [&](auto d, Index x) HWY_ATTR {
    const auto minus = hn::Set(d, -kInfinity<T>);
    const auto b = hn::LoadU(d, bias + x);
    hn::StoreU(hn::IfThenElse(hn::Eq(b, minus), minus, hn::Add(hn::LoadU(d, s + x), b)), d, s + x);
  });
}

template <class T>
void subtract_distance(T* s, T slope, Index distance, Index n) {
  for (Index x = 0; x < n; ++x) {
    const Index apart = distance + x;
    s[x] -= slope * static_cast<T>(apart < 0 ? -apart : apart);
  }
}

template <class T>
void mask(T* s, const std::uint8_t* allowed, Index n) {
  for (Index x = 0; x < n; ++x) s[x] = allowed[x] != 0 ? s[x] : -kInfinity<T>;
}

// ---- softmax --------------------------------------------------------------------------------

// Returns the largest of n scores, where n is a multiple of 16. NaNs are ignored.
template <class T>
HWY_INLINE T largest(const T* s, Index n) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  // Max(NaN, x) is x: x86 returns the second operand, AArch64 the operand that is not NaN.
  V top[4];
  for (V& x : top) x = hn::Set(d, -kInfinity<T>);
  Index x = 0;
  for (; x + 4 * kLanes <= n; x += 4 * kLanes) {
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y) top[y] = hn::Max(hn::LoadU(d, s + x + y * kLanes), top[y]);
  }
  for (; x < n; x += kLanes) top[0] = hn::Max(hn::LoadU(d, s + x), top[0]);
  const V all = hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]));
  return hn::GetLane(hn::MaxOfLanes(d, all));
}

// Replaces each s[x] by exp(s[x] - shift_by), or by 0 if s[x] - shift_by < least. Returns the sum
// of the results: partial sums by x mod kPanel, added as a tree.
template <class T>
HWY_INLINE T exponentials(T* s, Index n, T shift_by, T least) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kVectors = kPanel / kLanes;
  constexpr int kAtOnce = kVectors < 8 ? kVectors : 8;  // accumulators held in registers
  const V shift = hn::Set(d, shift_by);
  V sums[kVectors];
#pragma GCC unroll 4
  for (int v0 = 0; v0 < kVectors; v0 += kAtOnce) {
    V acc[kAtOnce];
#pragma GCC unroll 8
    for (int y = 0; y < kAtOnce; ++y) acc[y] = hn::Zero(d);
    const auto add = [&](T* at, V& to) HWY_ATTR {
      const V e = exp_nonpositive(d, hn::Sub(hn::LoadU(d, at), shift), least);
      hn::StoreU(e, d, at);
      to = hn::Add(to, e);
    };
    Index x = v0 * kLanes;
    for (; x + kAtOnce * kLanes <= n; x += kPanel) {
#pragma GCC unroll 8
      for (int y = 0; y < kAtOnce; ++y) add(s + x + y * kLanes, acc[y]);
    }
    // The last panel may be partial.
#pragma GCC unroll 8
    for (int y = 0; y < kAtOnce; ++y) {
      if (x + y * kLanes < n) add(s + x + y * kLanes, acc[y]);
    }
#pragma GCC unroll 8
    for (int y = 0; y < kAtOnce; ++y) sums[v0 + y] = acc[y];
  }
#pragma GCC unroll 8
  for (int width = kVectors / 2; width > 0; width /= 2) {
#pragma GCC unroll 16
    for (int y = 0; y < width; ++y) sums[y] = hn::Add(sums[y], sums[y + width]);
  }
  return tree_sum_of_lanes(d, sums[0]);
}

// Computes the maxima of all rows first, so that work on the next row hides the latency of a row's
// last steps.
template <class T>
HWY_NOINLINE void softmax(const RowsOf<T>& s, Index rows, Index n, T least, T* max, T* sum) {
  for (Index r = 0; r < rows; ++r) max[r] = largest(s.data + r * s.stride, n);
  for (Index r = 0; r < rows; ++r) {
    T* row = s.data + r * s.stride;
    if (max[r] > -kInfinity<T>) {
      sum[r] = exponentials(row, n, max[r], least);
      continue;
    }
    bool nan = false;  // if false, all scores are masked
    for (Index x = 0; x < n; ++x) {
      nan = nan || row[x] != row[x];
      row[x] = T(0);
    }
    sum[r] = nan ? std::numeric_limits<T>::quiet_NaN() : T(0);
  }
}

// Merges the states of n rows at once, each as reference/softmax.h merges the states of one row.
template <class T>
void merge(Index n, const PartialSoftmax<T>& total, const PartialSoftmax<const T>& chunk,
           T* total_factor, T* chunk_factor) {
  for_each_vector<T>(n, [&](auto d, Index x) HWY_ATTR {
    const auto none = hn::Set(d, -kInfinity<T>);
    const auto a = hn::LoadU(d, total.max + x);
    const auto b = hn::LoadU(d, chunk.max + x);
    const auto chunk_sum = hn::LoadU(d, chunk.sum + x);
    const auto max = hn::Max(a, b);
    const auto fa = hn::IfThenZeroElse(hn::Eq(a, none), weight_exp(d, hn::Sub(a, max)));
    // True for a chunk without unmasked keys, not for one with NaN.
    const auto empty = hn::And(hn::Eq(b, none), hn::Eq(chunk_sum, hn::Zero(d)));
    const auto fb = hn::IfThenZeroElse(empty, weight_exp(d, hn::Sub(b, max)));
    const auto keep = hn::IfThenElse(empty, hn::Set(d, T(1)), fa);
    hn::StoreU(keep, d, total_factor + x);
    hn::StoreU(fb, d, chunk_factor + x);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, total.sum + x), keep, hn::Mul(chunk_sum, fb)), d,
               total.sum + x);
    hn::StoreU(max, d, total.max + x);
  });
}

template <class T>
void merge_row(T* total, T total_factor, const T* chunk, T chunk_factor, Index E) {
  for_each_vector<T>(E, [&](auto d, Index x) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, total + x), hn::Set(d, total_factor),
                          hn::Mul(hn::LoadU(d, chunk + x), hn::Set(d, chunk_factor))),
               d, total + x);
  });
}

template <class T>
bool has_nan(const T* x, Index n) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  // Stays 0 for numbers and infinities; NaN sets bits.
  auto all = hn::Zero(d);
  for (Index c = 0; c < n; c += kLanes) {
    const auto v = hn::LoadU(d, x + c);
    all = hn::Or(all, hn::VecFromMask(d, hn::IsNaN(v)));
  }
  return !hn::AllTrue(d, hn::Eq(all, hn::Zero(d)));
}

template <class T>
void scale_row(const T* x, T factor, Index n, T* to) {
  for (Index c = 0; c < n; ++c) to[c] = x[c] * factor;
}

template <class T>
void result_row(const T* x, T factor, Index n, T* to) {
  for (Index c = 0; c < n; ++c) to[c] = (x[c] + T(0)) * factor;
}

template <class T>
void weights(const T* s, Index n, T least, T max, T sum, T* w) {
  for_each_vector<T>(n, [&](auto d, Index x) HWY_ATTR {
    const auto e = exp_nonpositive(d, hn::Sub(hn::LoadU(d, s + x), hn::Set(d, max)), least);
    hn::StoreU(hn::Div(e, hn::Set(d, sum)), d, w + x);
  });
}

// Adds weights to the sums of columns, which stay in registers while all rows are added. -ln(w) is
// log_sum - (s - max), limited to finite numbers, since w ln(w) has to be 0 where w is 0.
template <class T, bool kCells, bool kEntropy>
HWY_NOINLINE void sum_weights_to(const SummedRow<T>* rows, Index count, Index n,
                                 const WeightSums<T>& to) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  HWY_ALIGN T partial[kTileRows * kPanel] = {};
  const auto most = hn::Set(d, std::numeric_limits<T>::max());
  for (Index x = 0; x < n; x += kLanes) {
    auto column = hn::LoadU(d, to.columns + x);
    auto cell = hn::Zero(d);
    if constexpr (kCells) cell = hn::LoadU(d, to.cells + x);
    for (Index r = 0; r < count; ++r) {
      const SummedRow<T>& row = rows[r];
      const auto below = hn::Sub(hn::LoadU(d, row.s + x), hn::Set(d, row.max));
      const auto w = hn::Div(weight_exp(d, below), hn::Set(d, row.sum));
      column = hn::Add(column, w);
      if constexpr (kCells) cell = hn::Add(cell, w);
      if constexpr (kEntropy) {
        T* sums = partial + r * kPanel + x % kPanel;
        const auto log = hn::Min(hn::Sub(hn::Set(d, row.log_sum), below), most);
        hn::Store(hn::MulAdd(w, log, hn::Load(d, sums)), d, sums);
      }
    }
    hn::StoreU(column, d, to.columns + x);
    if constexpr (kCells) hn::StoreU(cell, d, to.cells + x);
  }
  if constexpr (!kEntropy) return;
  for (Index r = 0; r < count; ++r) {
    T* sums = partial + r * kPanel;
    for (Index width = kPanel / 2; width > 0; width /= 2) {
      for (Index y = 0; y < width; ++y) sums[y] += sums[y + width];
    }
    to.entropy[r] = sums[0];
  }
}

template <class T>
void sum_weights(const SummedRow<T>* rows, Index count, Index n, const WeightSums<T>& to) {
  if (to.cells != nullptr) {
    if (to.entropy != nullptr) return sum_weights_to<T, true, true>(rows, count, n, to);
    return sum_weights_to<T, true, false>(rows, count, n, to);
  }
  if (to.entropy != nullptr) return sum_weights_to<T, false, true>(rows, count, n, to);
  sum_weights_to<T, false, false>(rows, count, n, to);
}

template <class T>
void divide(const T* x, T by, Index n, T* to) {
  for_each_vector<T>(n, [&](auto d, Index at) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, x + at), hn::Set(d, by)), d, to + at);
  });
}

// ---- dropout --------------------------------------------------------------------------------

// Sets the bits of a key's 32-bit lane of `dropped` if its weight is dropped, else clears them. A
// call covers kStreams * 4 * (number of 64-bit lanes) keys, in ascending order.
//
// A 64-bit lane represents a group of four keys and holds a 32-bit word in its lower half: products
// need no shuffling, and upper halves are ignored. Lane 2m counts group m, lane 2m + 1 group m +
// lanes / 2: interleaving two registers of words then gives keys in order. Each round waits for the
// previous one, so several streams are interleaved: as many as keep the multipliers busy, if the
// target has registers for them.
inline constexpr int kFewStreams = 2;
inline constexpr int kMostStreams = HWY_MAX_BYTES == 64 ? 4 : 2;

template <int kStreams, class D, class D32 = hn::Repartition<std::uint32_t, D>>
HWY_INLINE void dropped_keys(D d, hn::Vec<D> groups, const std::uint64_t* words,
                             std::uint32_t threshold, hn::Vec<D32>* dropped) {
  using V = hn::Vec<D>;
  const D32 d32;
  const auto product = [&](V x, std::uint32_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, x), hn::Set(d32, factor));
  };
  // Moves upper halves down by a shuffle, because on AVX-512 shifts compete with products for one
  // port.
  const auto upper = [&](V x)
                         HWY_ATTR { return hn::BitCast(d, hn::Shuffle2301(hn::BitCast(d32, x))); };
  V c[kStreams][4];
#pragma GCC unroll 4
  for (int x = 0; x < kStreams; ++x) {
    c[x][0] = hn::Add(groups, hn::Set(d, static_cast<std::uint64_t>(x) * (HWY_MAX_BYTES / 8)));
    for (int word = 1; word < 4; ++word) c[x][word] = hn::Set(d, words[19 + word]);
  }
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const V key0 = hn::Set(d, words[2 * round]);
    const V key1 = hn::Set(d, words[2 * round + 1]);
#pragma GCC unroll 4
    for (int x = 0; x < kStreams; ++x) {
      const V a = product(c[x][0], 0xD2511F53U);
      const V b = product(c[x][2], 0xCD9E8D57U);
      c[x][0] = hn::Xor3(upper(b), c[x][1], key0);
      c[x][2] = hn::Xor3(upper(a), c[x][3], key1);
      c[x][1] = b;
      c[x][3] = a;
    }
  }
  // Joins the lower halves of the 64-bit lanes of two registers in one register.
  const auto pair = [&](V even, V odd) HWY_ATTR {
    return hn::BitCast(d, hn::OddEven(hn::BitCast(d32, upper(odd)), hn::BitCast(d32, even)));
  };
  const auto limit = hn::Set(d32, threshold);
  const auto below = [&](V x) HWY_ATTR {
    return hn::VecFromMask(d32, hn::Lt(hn::BitCast(d32, x), limit));
  };
#pragma GCC unroll 4
  for (int x = 0; x < kStreams; ++x) {
    const V first = pair(c[x][0], c[x][1]);
    const V second = pair(c[x][2], c[x][3]);
    dropped[2 * x] = below(hn::InterleaveLower(d, first, second));
    dropped[2 * x + 1] = below(hn::InterleaveUpper(d, first, second));
  }
}

// Sets the weights of dropped keys to 0, for kStreams * 4 * (number of 64-bit lanes) keys: the
// first is the first key of the group in lane 0 of `groups`.
template <int kStreams, class T, class D>
HWY_INLINE void drop_next(D d, hn::Vec<D> groups, const std::uint64_t* words,
                          std::uint32_t threshold, T* w) {
  const hn::Repartition<std::uint32_t, D> d32;
  constexpr Index kKeys = HWY_MAX_BYTES / 4;  // number of keys in a register of 32-bit words
  hn::Vec<decltype(d32)> dropped[2 * kStreams];
  dropped_keys<kStreams>(d, groups, words, threshold, dropped);
#pragma GCC unroll 8
  for (int y = 0; y < 2 * kStreams; ++y) {
    T* to = w + y * kKeys;
    if constexpr (sizeof(T) == 4) {
      const hn::ScalableTag<T> dt;
      hn::StoreU(hn::AndNot(hn::BitCast(dt, dropped[y]), hn::LoadU(dt, to)), dt, to);
    } else {
      HWY_ALIGN std::uint32_t bits[kKeys];
      hn::Store(dropped[y], d32, bits);
      for (Index z = 0; z < kKeys; ++z) to[z] = bits[z] != 0 ? T(0) : to[z];
    }
  }
}

template <class T>
HWY_NOINLINE void drop(T* w, const core::DropoutRow& row, Index j0, Index n) {
  const hn::ScalableTag<std::uint64_t> d;
  constexpr Index kGroups = HWY_MAX_BYTES / 8;
  HWY_ALIGN std::uint64_t order[kGroups];
  for (Index m = 0; m < kGroups; ++m) {
    order[m] = static_cast<std::uint64_t>(m / 2 + (m % 2) * (kGroups / 2));
  }
  // Philox's keys of the ten rounds (two words a round), then words 1, 2 and 3 of its counter.
  std::uint64_t words[23];
  for (std::uint32_t round = 0; round < 10; ++round) {
    words[2 * round] = row.key[0] + round * 0x9E3779B9U;
    words[2 * round + 1] = row.key[1] + round * 0xBB67AE85U;
  }
  words[20] = row.i;
  words[21] = row.h;
  words[22] = row.b;
  const auto lanes = hn::Load(d, order);
  const auto groups_at = [&](Index x) HWY_ATTR {
    return hn::Add(lanes, hn::Set(d, static_cast<std::uint64_t>((j0 + x) / 4)));
  };
  constexpr Index kFew = kFewStreams * 4 * kGroups;
  constexpr Index kMost = kMostStreams * 4 * kGroups;
  static_assert(kPanel % kFew == 0);
  Index x = 0;
  for (; x + kMost <= n; x += kMost) {
    drop_next<kMostStreams>(d, groups_at(x), words, row.threshold, w + x);
  }
  for (; x < n; x += kFew) {
    drop_next<kFewStreams>(d, groups_at(x), words, row.threshold, w + x);
  }
}

// ---- for measuring --------------------------------------------------------------------------

template <class T>
HWY_NOINLINE double multiply_adds(Index rounds) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kSums = HWY_TARGET == HWY_AVX3 ? 24 : 12;
  V acc[kSums];
  // Starting values are distinct so that the compiler does not merge them.
#pragma GCC unroll 24
  for (int x = 0; x < kSums; ++x) acc[x] = hn::Set(d, T(x + 1));
  const V factor = hn::Set(d, T(0.999));
  const V term = hn::Set(d, T(1e-3));
  for (Index n = 0; n < rounds; ++n) {
#pragma GCC unroll 24
    for (int x = 0; x < kSums; ++x) acc[x] = hn::MulAdd(acc[x], factor, term);
  }
  V total = acc[0];
#pragma GCC unroll 24
  for (int x = 1; x < kSums; ++x) total = hn::Add(total, acc[x]);
  [[maybe_unused]] volatile T sink = hn::GetLane(total);  // keeps the loop
  return 2.0 * kSums * static_cast<double>(HWY_MAX_BYTES / sizeof(T)) * static_cast<double>(rounds);
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
