// SPDX-License-Identifier: Apache-2.0
#include <sleef.h>

#include "broadcast-inl.h"

namespace qkv::bench {
namespace {

struct Lanes {
  using Vector = __m256;
  static constexpr Index kLanes = 8;
  static Vector set(float value) { return _mm256_set1_ps(value); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector tanh(Vector a) { return Sleef_tanhf8_u35avx2(a); }
  static Vector exp(Vector a) { return Sleef_expf8_u10avx2(a); }
};

}  // namespace

BroadcastLoops broadcast_avx2() { return loops_of<Lanes>(); }

}  // namespace qkv::bench
