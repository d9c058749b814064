// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_FROZEN_DRAW_H_
#define QKV_TESTS_ATTENTION_FROZEN_DRAW_H_

#include <cstddef>
#include <cstdint>

#include <qkv/tensor.h>

#include "core/storage.h"

// Random numbers that are the same with every compiler and libm: integers, and values derived from
// them without rounding.
namespace qkv::test::frozen {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // From low to high, both included.
  Index whole(Index low, Index high) {
    return low + static_cast<Index>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(Index percent) { return whole(0, 99) < percent; }
  template <class T, std::size_t n>
  T one_of(const T (&list)[n]) {
    return list[static_cast<std::size_t>(whole(0, static_cast<Index>(n) - 1))];
  }
  // A sum of four uniform 16-bit numbers: nearly normal, of mean 0 and deviation 1.15, and exact in
  // float32.
  double number() {
    const std::uint64_t x = bits();
    const auto part = [&](int shift) { return static_cast<int>((x >> shift) & 0xFFFF); };
    return (part(0) + part(16) + part(32) + part(48) - 2 * 0xFFFF) * 0x1p-15;
  }

 private:
  std::uint64_t state_;
};

// Numbers of deviation 1.15 * size; if size is a power of two, nothing is rounded in float32. Those
// of float64 have 51 bits: with fewer, sums of products would be exact, in any order.
inline Tensor numbers(Draw& draw, DType dtype, const Dims& shape, double size = 1) {
  Tensor x(dtype, shape);
  void* const data = x.view().data();
  for (Index n = 0; n < x.element_count(); ++n) {
    double number = draw.number();
    if (dtype == DType::kFloat64) number += draw.number() * 0x1p-33;
    core::store(dtype, data, n, number * size);
  }
  return x;
}

}  // namespace qkv::test::frozen

#endif  // QKV_TESTS_ATTENTION_FROZEN_DRAW_H_
