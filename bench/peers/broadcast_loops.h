// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_PEERS_BROADCAST_LOOPS_H_
#define QKV_BENCH_PEERS_BROADCAST_LOOPS_H_

#include <qkv/view.h>

// The inner loops of the broadcast formula, which broadcast-inl.h implements for each vector width.
namespace qkv::bench {

// The loops for one vector width, `lanes` numbers. Matrices are row-major and contiguous; U and E
// are multiples of `lanes`.
struct BroadcastLoops {
  Index lanes;
  // out [T,U] = x [T,D] w [D,U] + bias [U]
  void (*project)(const float* x, const float* w, const float* bias, float* out, Index T, Index D,
                  Index U);
  // t [keys,U] = tanh(a [U] + b [keys,U])
  void (*tanh_of_sums)(const float* a, const float* b, float* t, Index keys, Index U);
  // s [keys] = t [keys,U] v [U]
  void (*times_v)(const float* t, const float* v, float* s, Index keys, Index U);
  // s [keys] = softmax(s) in place; the memory of s has room for one more vector after the keys.
  void (*softmax)(float* s, Index keys);
  // out [E] = w [keys] values [keys,E]
  void (*weighted_sum)(const float* w, const float* values, float* out, Index keys, Index E);
};

BroadcastLoops broadcast_avx2();
BroadcastLoops broadcast_avx512();

}  // namespace qkv::bench

#endif  // QKV_BENCH_PEERS_BROADCAST_LOOPS_H_
