// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_BITS_H_
#define QKV_TESTS_ATTENTION_BITS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "core/storage.h"
#include "tests/support/arrays.h"

// Seeded tensors, and bitwise equality.
namespace qkv::test {

// Returns normally distributed numbers. They are drawn by the standard library, not by Random,
// because the precision bounds were measured on them.
inline Tensor normal(const Dims& shape, std::uint64_t seed, DType dtype = DType::kFloat32) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> distribution;
  Tensor x(dtype, shape);
  for (Index n = 0; n < x.element_count(); ++n) {
    core::store(dtype, x.view().data(), n, distribution(random));
  }
  return x;
}

// Whether two arrays have equal shapes, dtypes and bytes, those of NaNs included. Fails for arrays
// without elements, since that comparison would prove nothing.
inline testing::AssertionResult same_bits(const ConstView& a, const ConstView& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return testing::AssertionFailure() << describe(a) << " against " << describe(b);
  }
  const Tensor x = contiguous(a);
  const Tensor y = contiguous(b);
  const std::size_t bytes = static_cast<std::size_t>(x.element_count()) * size_of(x.dtype());
  if (bytes == 0) return testing::AssertionFailure() << "nothing to compare";
  const auto* p = static_cast<const unsigned char*>(x.view().data());
  const auto* q = static_cast<const unsigned char*>(y.view().data());
  const auto n = static_cast<std::size_t>(std::mismatch(p, p + bytes, q).first - p);
  if (n == bytes) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << describe(a) << " differs at element " << n / size_of(x.dtype());
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_BITS_H_
