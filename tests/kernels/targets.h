// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_KERNELS_TARGETS_H_
#define QKV_TESTS_KERNELS_TARGETS_H_

#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/dtype.h>

#include "kernels/amx_kernels.h"
#include "kernels/target.h"

// Types, targets and random numbers that the tests of kernels share.
namespace qkv::kernels {

// The types of accumulators.
using SumTypes = testing::Types<float, double>;

inline std::size_t at(Index n) { return static_cast<std::size_t>(n); }

// Normally distributed numbers that depend on the seed alone.
template <class T>
std::vector<T> random_values(Index n, unsigned seed, double deviation = 1) {
  std::mt19937 bits(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<T> x(at(n));
  for (T& value : x) value = static_cast<T>(normal(bits));
  return x;
}

// Calls f(target) for each target that this CPU runs, except kAvx512Bf16, kAmx and kEmulatedAmx:
// bfloat16_kernels_test.cc tests that they share the kernels of kAvx512, and tests their kernels
// for BF16. Skips the test if no target is left.
template <class F>
void for_each_supported(const F& f) {
  int targets = 0;
  for (const Target target : kTargets) {
    if (!is_supported(target) || target == Target::kAvx512Bf16) continue;
    if (has_amx_products(target)) continue;
    SCOPED_TRACE(std::string(name_of(target)));
    f(target);
    ++targets;
  }
  if (targets == 0) GTEST_SKIP() << "this CPU has no target with kernels";
}

}  // namespace qkv::kernels

#endif  // QKV_TESTS_KERNELS_TARGETS_H_
