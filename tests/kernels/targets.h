// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_KERNELS_TARGETS_H_
#define QKV_TESTS_KERNELS_TARGETS_H_

#include <string>

#include <gtest/gtest.h>

#include "kernels/target.h"

namespace qkv::kernels {

// f(target) for each target with kernels of its own that this CPU runs; a test without any is
// skipped. kAvx512Bf16 has those of kAvx512 (pair_kernels_test.cc).
template <class F>
void for_each_supported(const F& f) {
  int targets = 0;
  for (const Target target : kTargets) {
    if (!is_supported(target) || target == Target::kAvx512Bf16) continue;
    SCOPED_TRACE(std::string(name_of(target)));
    f(target);
    ++targets;
  }
  if (targets == 0) GTEST_SKIP() << "this CPU has no target with kernels";
}

}  // namespace qkv::kernels

#endif  // QKV_TESTS_KERNELS_TARGETS_H_
