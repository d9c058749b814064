// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_RANDOM_H_
#define QKV_TESTS_SUPPORT_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include <qkv/view.h>

namespace qkv::test {

// Random numbers that are the same with every compiler, standard library and libm: integers, and
// real numbers made of them by single operations of IEEE 754. The numbers are those of SplitMix64
// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Tests that
// need not draw the same numbers everywhere may use this class with standard distributions.
class Random {
 public:
  using result_type = std::uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  // The seed is mixed, so that the sequences of neighbouring seeds have nothing in common.
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}

  result_type operator()() { return mix(state_ += kStep); }
  // Returns an integer from low to high, both included.
  Index whole(Index low, Index high) {
    return low + static_cast<Index>((*this)() % static_cast<std::uint64_t>(high - low + 1));
  }
  // Returns a number of at least 0 and below 1.
  double fraction() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }
  bool chance(double p) { return fraction() < p; }
  template <class T, std::size_t n>
  T one_of(const T (&list)[n]) {
    return list[static_cast<std::size_t>(whole(0, static_cast<Index>(n) - 1))];
  }
  // Returns a nearly normal number of mean 0 and deviation 1: the sum of four uniform 16-bit
  // integers and of a fraction from -0.5 to 0.5, so that all bits of a float64 are used.
  double normal() {
    constexpr double kDeviation = 37837.22;  // standard deviation of the sum
    const std::uint64_t x = (*this)();
    const auto part = [&](int shift) { return static_cast<int>((x >> shift) & 0xFFFF); };
    const int sum = part(0) + part(16) + part(32) + part(48) - 2 * 0xFFFF;
    return (sum + fraction() - 0.5) / kDeviation;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;

  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_RANDOM_H_
