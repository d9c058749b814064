// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_GRU_H_
#define QKV_REFERENCE_GRU_H_

#include <qkv/view.h>

#include "reference/scalar.h"

// The gated recurrent unit without its products (Cho et al. 2014, section 2.3, in PyTorch's form),
// forward and backward, on one row. S is float, double or complex<double>.
namespace qkv::reference {

template <class S>
S sigmoid(const S& x) {
  return S(1) / (S(1) + reference::exp(-x));
}

// Computes the next state from xs and hs [3 hidden]: the parts of the pre-activations of r, z and n
// that come from the input and from h. r, z, n and hs_n are written to gates [4 hidden], unless it
// is null. `next` may be h.
template <class S>
void gru_forward(const S* xs, const S* hs, const S* h, Index hidden, S* next, S* gates) {
  for (Index u = 0; u < hidden; ++u) {
    const S hs_n = hs[2 * hidden + u];
    const S r = sigmoid(xs[u] + hs[u]);
    const S z = sigmoid(xs[hidden + u] + hs[hidden + u]);
    const S n = reference::tanh(xs[2 * hidden + u] + r * hs_n);
    if (gates != nullptr) {
      gates[u] = r;
      gates[hidden + u] = z;
      gates[2 * hidden + u] = n;
      gates[3 * hidden + u] = hs_n;
    }
    next[u] = n + z * (h[u] - n);  // (1 - z) n + z h
  }
}

// Computes dgates [4 hidden], the gradients of the pre-activations of r, z and n and of hs_n, and
// dh, the term dnext * z of the gradient of h. The lines are the backward passes of gru_forward's
// lines, in reverse order.
template <class S>
void gru_backward(const S* gates, const S* h, const S* dnext, Index hidden, S* dgates, S* dh) {
  for (Index u = 0; u < hidden; ++u) {
    const S r = gates[u];
    const S z = gates[hidden + u];
    const S n = gates[2 * hidden + u];
    const S d = dnext[u];
    dh[u] = d * z;
    const S dz = d * (h[u] - n);
    const S dn = d * (S(1) - z) * (S(1) - n * n);
    const S dr = dn * gates[3 * hidden + u];
    dgates[u] = dr * r * (S(1) - r);
    dgates[hidden + u] = dz * z * (S(1) - z);
    dgates[2 * hidden + u] = dn;
    dgates[3 * hidden + u] = dn * r;
  }
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_GRU_H_
