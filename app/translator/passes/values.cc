// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/values.h"

#include "core/storage.h"

namespace qkv::app {
namespace {

// True if a, the first number of a pair, is at least b or NaN. The bitwise or avoids the branch of
// the logical or, which is unpredictable and prevents vector instructions.
template <class T>
bool is_first(T a, T b) {
  return (static_cast<int>(a >= b) | static_cast<int>(a != a)) != 0;
}

}  // namespace

void larger_of_pairs(const ConstView& pairs, const View& to) {
  core::dispatch(to.dtype(), [&]<class T>() {
    const T* from = pairs.as<T>();
    T* const target = to.as<T>();
    const Index count = to.element_count();
    for (Index n = 0; n < count; ++n) {
      const T a = from[2 * n];
      const T b = from[2 * n + 1];
      target[n] = is_first(a, b) ? a : b;
    }
  });
}

void larger_of_pairs_backward(const ConstView& d, const View& pairs) {
  core::dispatch(pairs.dtype(), [&]<class T>() {
    const T* const from = d.as<T>();
    T* const pair = pairs.as<T>();
    const Index count = d.element_count();
    for (Index n = 0; n < count; ++n) {
      const bool first = is_first(pair[2 * n], pair[2 * n + 1]);
      const T gradient = from[n];
      pair[2 * n] = first ? gradient : T(0);
      pair[2 * n + 1] = first ? T(0) : gradient;
    }
  });
}

}  // namespace qkv::app
