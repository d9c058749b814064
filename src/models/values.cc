// SPDX-License-Identifier: Apache-2.0
#include "models/values.h"

namespace qkv::app {

void larger_of_pairs(const ConstView& pairs, const View& to) {
  with_type(to.dtype(), [&]<class T>() {
    const T* from = pairs.as<T>();
    T* const target = to.as<T>();
    for (Index n = 0; n < to.element_count(); ++n, from += 2) {
      // Written so that NaN, which compares false, propagates.
      target[n] = from[0] >= from[1] || from[0] != from[0] ? from[0] : from[1];
    }
  });
}

void larger_of_pairs_backward(const ConstView& d, const View& pairs) {
  with_type(pairs.dtype(), [&]<class T>() {
    const T* const from = d.as<T>();
    T* pair = pairs.as<T>();
    for (Index n = 0; n < d.element_count(); ++n, pair += 2) {
      const bool first = pair[0] >= pair[1] || pair[0] != pair[0];
      pair[first ? 0 : 1] = from[n];
      pair[first ? 1 : 0] = T(0);
    }
  });
}

}  // namespace qkv::app
