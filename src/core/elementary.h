// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ELEMENTARY_H_
#define QKV_CORE_ELEMENTARY_H_

#include <qkv/export.h>

// Elementary functions whose results are bit-identical on every CPU and with every C library. A C
// library holds several versions of each function, whose last bits differ, and chooses by the CPU.
// Here every step is an addition, product or division rounded as IEEE 754 says, or integer
// arithmetic. The results for infinities, zeros and NaN are those of C. A float32 result is
// computed in float64 and rounded once.
namespace qkv::core {

// The errors of portable_exp and portable_log are at most 1 ulp.
QKV_API double portable_exp(double x) noexcept;
QKV_API double portable_log(double x) noexcept;
// The error of portable_tanh is at most 3 ulp.
QKV_API double portable_tanh(double x) noexcept;

inline float portable_exp(float x) noexcept { return static_cast<float>(portable_exp(double{x})); }
inline float portable_log(float x) noexcept { return static_cast<float>(portable_log(double{x})); }
inline float portable_tanh(float x) noexcept {
  return static_cast<float>(portable_tanh(double{x}));
}

struct SinCos {
  double sin, cos;
};
// The error is at most 1 ulp for angles of any size; infinite angles give NaN.
QKV_API SinCos portable_sin_cos(double angle) noexcept;

// Powers of one finite non-negative base with finite exponents. The error is at most 1.5 ulp, and
// at most 1 ulp where |exponent log(base)| <= 100.
class QKV_API Powers {
 public:
  explicit Powers(double base) noexcept;
  double of(double exponent) const noexcept;

 private:
  double log_, log_rest_;  // log(base) in two parts
};

}  // namespace qkv::core

#endif  // QKV_CORE_ELEMENTARY_H_
