// SPDX-License-Identifier: Apache-2.0
// Operations on rows of scores and their gradients between the products of the backward pass, for
// each CPU target.
#if defined(QKV_KERNELS_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_GRADIENT_INL_H_
#undef QKV_KERNELS_GRADIENT_INL_H_
#else
#define QKV_KERNELS_GRADIENT_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/gradient_kernels.h"
#include "kernels/stored-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_NOINLINE void score_gradients(const RowsOf<T>& s, const RowsOf<T>& dw, Index rows, Index n,
                                  const QueryState<T>& queries, T scale) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr int kVectors = 4;  // independent chains, to hide the latency of the polynomial
  const V none = hn::Set(d, -kInfinity<T>);
  const V slope = hn::Set(d, scale);
  for (Index r = 0; r < rows; ++r) {
    T* s_row = s.data + r * s.stride;
    T* dw_row = dw.data + r * dw.stride;
    const V shift = hn::Set(d, queries.lse[r]);
    const V factor = hn::Set(d, queries.factor[r]);
    const V middle = hn::Set(d, queries.delta[r]);
    const auto change = [&](Index x) HWY_ATTR {
      const V score = hn::LoadU(d, s_row + x);
      const auto masked = hn::Eq(score, none);
      const V e = hn::Mul(weight_exp(d, hn::Sub(score, shift)), factor);
      const V w = hn::IfThenZeroElse(masked, e);
      const V ds = hn::Mul(w, hn::Sub(hn::LoadU(d, dw_row + x), middle));
      hn::StoreU(w, d, s_row + x);
      hn::StoreU(hn::IfThenZeroElse(masked, hn::Mul(ds, slope)), d, dw_row + x);
    };
    Index x = 0;
    for (; x + kVectors * kLanes <= n; x += kVectors * kLanes) {
#pragma GCC unroll 4
      for (int y = 0; y < kVectors; ++y) change(x + y * kLanes);
    }
    for (; x < n; x += kLanes) change(x);
  }
}

// Computes dot products of kRows rows as independent chains, since each addition waits for the
// previous one.
template <class T, int kRows>
HWY_INLINE void dots_of_rows(const RowsOf<const T>& a, const RowsOf<const T>& b, Index n, T* to) {
  const hn::CappedTag<T, 1> d;
  Index end = 0;
  do {
    const Index begin = end;
    end = std::min(n, begin + core::kChannelBlock);
    hn::Vec<decltype(d)> sums[kRows];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (Index c = begin; c < end; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums[r] = hn::MulAdd(hn::LoadU(d, a.data + r * a.stride + c),
                             hn::LoadU(d, b.data + r * b.stride + c), sums[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const T sum = hn::GetLane(sums[r]);
      to[r] = begin == 0 ? sum : to[r] + sum;
    }
  } while (end < n);
}

// Computes dot products of as many rows as a register has lanes, one row in each lane;
// bit-identical with dots_of_rows.
template <class T>
HWY_INLINE void dots_of_lanes(const RowsOf<const T>& a, const RowsOf<const T>& b, Index n, T* to) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  constexpr Index kWords = 16 / sizeof(T);
  const auto load = [](const RowsOf<const T>& x, Index c, hn::Vec<decltype(d)>* words) HWY_ATTR {
    transpose_words(reinterpret_cast<const std::byte*>(x.data + c),
                    x.stride * static_cast<Index>(sizeof(T)), words);
  };
  Index end = 0;
  do {
    const Index begin = end;
    end = std::min(n, begin + core::kChannelBlock);
    auto sum = hn::Zero(d);
    Index c = begin;
    for (; c + kWords <= end; c += kWords) {
      hn::Vec<decltype(d)> x[kWords];
      hn::Vec<decltype(d)> y[kWords];
      load(a, c, x);
      load(b, c, y);
#pragma GCC unroll 4
      for (int m = 0; m < kWords; ++m) sum = hn::MulAdd(x[m], y[m], sum);
    }
    T sums[kLanes];
    hn::StoreU(sum, d, sums);
    for (Index r = 0; r < kLanes; ++r) {
      auto rest = hn::Set(one, sums[r]);
      for (Index x = c; x < end; ++x) {
        rest = hn::MulAdd(hn::LoadU(one, a.data + r * a.stride + x),
                          hn::LoadU(one, b.data + r * b.stride + x), rest);
      }
      to[r] = begin == 0 ? hn::GetLane(rest) : to[r] + hn::GetLane(rest);
    }
  } while (end < n);
}

template <class T>
HWY_NOINLINE void row_dots(const RowsOf<const T>& a, const RowsOf<const T>& b, Index rows, Index n,
                           T* to) {
  constexpr int kTogether = 8;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  Index r = 0;
  const auto from = [&](const RowsOf<const T>& x) {
    return RowsOf<const T>{x.data + r * x.stride, x.stride};
  };
  for (; kLanes >= kTogether && r + kLanes <= rows; r += kLanes) {
    dots_of_lanes(from(a), from(b), n, to + r);
  }
  for (; r + kTogether <= rows; r += kTogether) {
    dots_of_rows<T, kTogether>(from(a), from(b), n, to + r);
  }
  for (; r < rows; ++r) dots_of_rows<T, 1>(from(a), from(b), n, to + r);
}

// Sums n terms. term(d, x, sum) returns `sum` plus the register of terms from x on or, with a
// one-lane tag, plus term x.
template <class T, class Term>
HWY_INLINE T sum_of(Index n, const Term& term) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  hn::Vec<decltype(d)> sums[4];
  for (auto& sum : sums) sum = hn::Zero(d);
  Index x = 0;
  for (; x + 4 * kLanes <= n; x += 4 * kLanes) {
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y) sums[y] = term(d, x + y * kLanes, sums[y]);
  }
  for (; x + kLanes <= n; x += kLanes) sums[0] = term(d, x, sums[0]);
  const hn::CappedTag<T, 1> one;
  auto rest = hn::Zero(one);
  for (; x < n; ++x) rest = term(one, x, rest);
  const auto all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  return tree_sum_of_lanes(d, all) + hn::GetLane(rest);
}

// Computes dot products of kRows rows with b, in two chains for each row.
template <class T, int kRows>
HWY_INLINE void dots_with(const RowsOf<const T>& a, const T* HWY_RESTRICT b, Index n, T* to) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  hn::Vec<decltype(d)> sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = hn::Zero(d);
  const auto add = [&](Index at, int chain) HWY_ATTR {
    const auto value = hn::LoadU(d, b + at);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sums[r][chain] = hn::MulAdd(hn::LoadU(d, a.data + r * a.stride + at), value, sums[r][chain]);
    }
  };
  Index x = 0;
  for (; x + 2 * kLanes <= n; x += 2 * kLanes) {
    add(x, 0);
    add(x + kLanes, 1);
  }
  if (x + kLanes <= n) {
    add(x, 0);
    x += kLanes;
  }
  const hn::CappedTag<T, 1> one;
  for (int r = 0; r < kRows; ++r) {
    auto rest = hn::Zero(one);
    for (Index c = x; c < n; ++c) {
      rest = hn::MulAdd(hn::LoadU(one, a.data + r * a.stride + c), hn::LoadU(one, b + c), rest);
    }
    to[r] = tree_sum_of_lanes(d, hn::Add(sums[r][0], sums[r][1])) + hn::GetLane(rest);
  }
}

template <class T>
HWY_NOINLINE void dots(const RowsOf<const T>& a, Index rows, const T* b, Index n, T* to) {
  constexpr Index kTogether = 4;
  Index r = 0;
  for (; r + kTogether <= rows; r += kTogether) {
    dots_with<T, kTogether>({a.data + r * a.stride, a.stride}, b, n, to + r);
  }
  for (; r < rows; ++r) dots_with<T, 1>({a.data + r * a.stride, a.stride}, b, n, to + r);
}

template <class T>
T sum(const T* x, Index n) {
  return sum_of<T>(
      n, [&](auto d, Index at, auto sum) HWY_ATTR { return hn::Add(sum, hn::LoadU(d, x + at)); });
}

template <class T>
T distance_sum(const T* x, Index distance, Index n) {
  return sum_of<T>(n, [&](auto d, Index at, auto sum) HWY_ATTR {
    const auto apart = hn::Iota(d, static_cast<T>(distance + at));
    return hn::MulAdd(hn::LoadU(d, x + at), hn::Abs(apart), sum);
  });
}

// Tests that x - x is 0, which holds only for finite x.
template <class T>
bool all_finite(const T* x, Index n) {
  const hn::ScalableTag<T> d;
  constexpr Index kLanes = HWY_MAX_BYTES / sizeof(T);
  hn::Vec<decltype(d)> sums[4];
  for (auto& sum : sums) sum = hn::Zero(d);
  const auto add = [&](auto& sum, Index at) HWY_ATTR {
    const auto value = hn::LoadU(d, x + at);
    sum = hn::Add(sum, hn::Sub(value, value));
  };
  Index at = 0;
  for (; at + 4 * kLanes <= n; at += 4 * kLanes) {
#pragma GCC unroll 4
    for (int y = 0; y < 4; ++y) add(sums[y], at + y * kLanes);
  }
  for (; at + kLanes <= n; at += kLanes) add(sums[0], at);
  T rest(0);
  for (; at < n; ++at) rest += x[at] - x[at];
  const auto all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  return rest == T(0) && hn::AllTrue(d, hn::Eq(all, hn::Zero(d)));
}

template <class T>
void add(T* to, const T* x, Index n) {
  for_each_vector<T>(n, [&](auto d, Index at) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, to + at), hn::LoadU(d, x + at)), d, to + at);
  });
}

template <class T>
void multiply(T* to, const T* x, Index n) {
  for_each_vector<T>(n, [&](auto d, Index at) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, to + at), hn::LoadU(d, x + at)), d, to + at);
  });
}

template <class T>
void clear_masked(T* to, const T* s, Index n) {
  for_each_vector<T>(n, [&](auto d, Index at) HWY_ATTR {
    const auto masked = hn::Eq(hn::LoadU(d, s + at), hn::Set(d, -kInfinity<T>));
    hn::StoreU(hn::IfThenZeroElse(masked, hn::LoadU(d, to + at)), d, to + at);
  });
}

template <class T>
void keep(T* w, const T* z, Index n) {
  for_each_vector<T>(n, [&](auto d, Index at) HWY_ATTR {
    const auto factor = hn::LoadU(d, z + at);
    const auto dropped = hn::Eq(factor, hn::Zero(d));
    hn::StoreU(hn::IfThenZeroElse(dropped, hn::Mul(hn::LoadU(d, w + at), factor)), d, w + at);
  });
}

}  // namespace qkv::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
