// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_SUM_H_
#define QKV_REFERENCE_SUM_H_

#include "core/order.h"

// The fixed order in which the exponentials of a chunk are added.
namespace qkv::reference {

// Returns the total of partial sums, where p[t] holds the terms with j mod kPartialSums = t. Halves
// are added pairwise, p[t] += p[t + width] for width 32, 16, 8, 4, 2, 1. The order suits registers:
// each step adds the upper half of the registers, or of the last one, to the lower half. Overwrites
// p.
template <class T>
T tree_sum(T (&p)[core::kPartialSums]) {
  for (Index width = core::kPartialSums / 2; width > 0; width /= 2) {
    for (Index t = 0; t < width; ++t) p[t] += p[t + width];
  }
  return p[0];
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_SUM_H_
