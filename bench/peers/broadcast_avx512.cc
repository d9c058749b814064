// SPDX-License-Identifier: Apache-2.0
#include <sleef.h>

#include "broadcast-inl.h"

namespace qkv::bench {
namespace {

struct Lanes {
  using Vector = __m512;
  static constexpr Index kLanes = 16;
  static Vector set(float value) { return _mm512_set1_ps(value); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector tanh(Vector a) { return Sleef_tanhf16_u35avx512f(a); }
  static Vector exp(Vector a) { return Sleef_expf16_u10avx512f(a); }
};

}  // namespace

BroadcastLoops broadcast_avx512() { return loops_of<Lanes>(); }

}  // namespace qkv::bench
