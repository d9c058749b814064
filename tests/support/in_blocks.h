// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_IN_BLOCKS_H_
#define QKV_TESTS_SUPPORT_IN_BLOCKS_H_

#include <algorithm>

#include <qkv/view.h>

namespace qkv::test {

// Sums in the order of sums over channels (docs/semantics.md), independently of the library: blocks
// of 64 terms, or of `size`, each from zero, are added in ascending order. add(n, sum) returns the
// sum with term n added.
template <class T, class Add>
T sum_in_blocks(Index count, const Add& add, Index size = 64) {
  T total = 0;
  for (Index start = 0; start < count; start += size) {
    T block = 0;
    for (Index n = start; n < std::min(count, start + size); ++n) block = add(n, block);
    total = start == 0 ? block : total + block;
  }
  return total;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_IN_BLOCKS_H_
