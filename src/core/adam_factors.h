// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_ADAM_FACTORS_H_
#define QKV_CORE_ADAM_FACTORS_H_

namespace qkv::core {

// The factors of one update of Adam, each rounded once to the type of the parameters. The formula
// is in reference/update.h.
template <class T>
struct AdamFactors {
  T gradient = 1;  // multiplies the gradient as it is read
  T beta1 = 0;
  T beta2 = 0;
  T one_minus_beta1 = 1;
  T one_minus_beta2 = 1;
  T epsilon = 0;
  T m_rate = 0;        // rate / (1 - beta1^t)
  T v_factor = 1;      // 1 / (1 - beta2^t)
  T decay_factor = 1;  // 1 - rate * decay: multiplies the parameter
};

}  // namespace qkv::core

#endif  // QKV_CORE_ADAM_FACTORS_H_
