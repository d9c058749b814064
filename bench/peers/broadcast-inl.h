// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_BROADCAST_INL_H_
#define QKV_BENCH_PEERS_BROADCAST_INL_H_

#include <limits>

#include "broadcast_loops.h"

// The loops of BroadcastLoops for any vector width. broadcast_avx2.cc and broadcast_avx512.cc
// include this header, are compiled for their width, and pass its operations as the class L.
namespace qkv::bench {
namespace {

// Computes `registers` vectors of out = x [n] w [n,stride] + bias, or without a bias if it is null.
template <class L, int registers>
void row_times_matrix(const float* x, const float* w, const float* bias, float* out, Index n,
                      Index stride) {
  typename L::Vector sums[registers];
  for (int r = 0; r < registers; ++r) {
    sums[r] = bias == nullptr ? L::set(0) : L::load(bias + r * L::kLanes);
  }
  for (Index c = 0; c < n; ++c) {
    const typename L::Vector factor = L::set(x[c]);
    for (int r = 0; r < registers; ++r) {
      sums[r] = L::multiply_add(factor, L::load(w + c * stride + r * L::kLanes), sums[r]);
    }
  }
  for (int r = 0; r < registers; ++r) L::store(out + r * L::kLanes, sums[r]);
}

// out [m] = x [n] w [n,m] + bias [m], or without a bias if it is null.
template <class L>
void row_times(const float* x, const float* w, const float* bias, float* out, Index n, Index m) {
  constexpr int kFull = 8;
  Index u = 0;
  const auto at = [&](Index k) { return bias == nullptr ? nullptr : bias + k; };
  for (; u + kFull * L::kLanes <= m; u += kFull * L::kLanes) {
    row_times_matrix<L, kFull>(x, w + u, at(u), out + u, n, m);
  }
  for (; u < m; u += L::kLanes) row_times_matrix<L, 1>(x, w + u, at(u), out + u, n, m);
}

template <class L>
void project(const float* x, const float* w, const float* bias, float* out, Index T, Index D,
             Index U) {
  for (Index t = 0; t < T; ++t) row_times<L>(x + t * D, w, bias, out + t * U, D, U);
}

template <class L>
void tanh_of_sums(const float* a, const float* b, float* t, Index keys, Index U) {
  for (Index j = 0; j < keys; ++j) {
    for (Index u = 0; u < U; u += L::kLanes) {
      L::store(t + j * U + u, L::tanh(L::add(L::load(a + u), L::load(b + j * U + u))));
    }
  }
}

template <class L>
float sum_of(typename L::Vector vector) {
  float values[L::kLanes];
  L::store(values, vector);
  for (Index n = L::kLanes / 2; n > 0; n /= 2) {
    for (Index i = 0; i < n; ++i) values[i] += values[i + n];
  }
  return values[0];
}

template <class L>
void times_v(const float* t, const float* v, float* s, Index keys, Index U) {
  for (Index j = 0; j < keys; ++j) {
    typename L::Vector even = L::set(0);
    typename L::Vector odd = L::set(0);
    Index u = 0;
    for (; u + 2 * L::kLanes <= U; u += 2 * L::kLanes) {
      even = L::multiply_add(L::load(t + j * U + u), L::load(v + u), even);
      odd = L::multiply_add(L::load(t + j * U + u + L::kLanes), L::load(v + u + L::kLanes), odd);
    }
    if (u < U) even = L::multiply_add(L::load(t + j * U + u), L::load(v + u), even);
    s[j] = sum_of<L>(L::add(even, odd));
  }
}

template <class L>
void softmax(float* s, Index keys) {
  Index padded = keys;
  for (; padded % L::kLanes != 0; ++padded) s[padded] = -std::numeric_limits<float>::infinity();
  float most = s[0];
  for (Index j = 1; j < keys; ++j) most = s[j] > most ? s[j] : most;
  typename L::Vector sum = L::set(0);
  for (Index j = 0; j < padded; j += L::kLanes) {
    const typename L::Vector e = L::exp(L::add(L::load(s + j), L::set(-most)));
    L::store(s + j, e);
    sum = L::add(sum, e);
  }
  const float factor = 1 / sum_of<L>(sum);
  for (Index j = 0; j < keys; ++j) s[j] *= factor;
}

template <class L>
void weighted_sum(const float* w, const float* values, float* out, Index keys, Index E) {
  row_times<L>(w, values, nullptr, out, keys, E);
}

template <class L>
BroadcastLoops loops_of() {
  return {L::kLanes, project<L>, tanh_of_sums<L>, times_v<L>, softmax<L>, weighted_sum<L>};
}

}  // namespace
}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_BROADCAST_INL_H_
