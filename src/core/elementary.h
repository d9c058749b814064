// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ELEMENTARY_H_
#define QKV_CORE_ELEMENTARY_H_

#include <qkv/export.h>

// Elementary functions that have the same bits on every CPU and with every C library. A C library
// holds several versions of each function, whose last bits differ, and chooses by the CPU. Here
// every step is an addition, product or division rounded as IEEE 754 says, or arithmetic of
// integers. Infinities, zeros and NaN give what they give in C. Float32 is computed in float64 and
// rounded once.
namespace qkv::core {

// Within 1 ulp.
QKV_API double portable_exp(double x) noexcept;
QKV_API double portable_log(double x) noexcept;
// Within 3 ulp.
QKV_API double portable_tanh(double x) noexcept;

inline float portable_exp(float x) noexcept { return static_cast<float>(portable_exp(double{x})); }
inline float portable_log(float x) noexcept { return static_cast<float>(portable_log(double{x})); }
inline float portable_tanh(float x) noexcept {
  return static_cast<float>(portable_tanh(double{x}));
}

struct SinCos {
  double sin, cos;
};
// Within 1 ulp, for angles of any size; NaN for infinite ones.
QKV_API SinCos portable_sin_cos(double angle) noexcept;

// Powers of one finite base, which is not negative, with finite exponents. Within 1.5 ulp; within 1
// where |exponent log(base)| <= 100.
class QKV_API Powers {
 public:
  explicit Powers(double base) noexcept;
  double of(double exponent) const noexcept;

 private:
  double log_, log_rest_;  // log(base) in two parts
};

}  // namespace qkv::core

#endif  // QKV_CORE_ELEMENTARY_H_
