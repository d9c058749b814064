// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_LAYERS_SUPPORT_H_
#define QKV_TESTS_LAYERS_SUPPORT_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "core/storage.h"

// Arrays and comparisons shared by the tests of the layers.
namespace qkv::test {

inline constexpr DType kF32 = DType::kFloat32;
inline constexpr DType kF64 = DType::kFloat64;

// Fills a C-ordered array with normal numbers, which are equal in every dtype except for rounding.
inline void fill_normal(const View& target, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (Index n = 0; n < target.element_count(); ++n) {
    core::store(target.dtype(), target.data(), n, normal(random));
  }
}

inline Tensor random_tensor(DType dtype, const Dims& shape, std::uint64_t seed) {
  Tensor tensor(dtype, shape);
  fill_normal(tensor, seed);
  return tensor;
}

// Returns the layer with random parameters.
template <class L>
L initialised(L layer, std::uint64_t seed = 5) {
  initialise(layer, seed);
  return layer;
}

// Returns the bytes of a tensor, for bitwise comparison.
inline std::vector<std::uint8_t> bytes_of(const Tensor& tensor) {
  const ConstView view = tensor;
  const std::size_t count = static_cast<std::size_t>(view.element_count()) * size_of(view.dtype());
  std::vector<std::uint8_t> bytes(count);
  if (count > 0) std::memcpy(bytes.data(), view.data(), count);
  return bytes;
}

// Appends the bytes of the tensors, one after the other.
inline void add_bytes(std::vector<std::uint8_t>& to, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    const auto more = bytes_of(*tensor);
    to.insert(to.end(), more.begin(), more.end());
  }
}

// Returns the bytes of all parameters or gradients, one after the other.
template <class L>
std::vector<std::uint8_t> all_bytes(const L& layer) {
  std::vector<std::uint8_t> all;
  for_each_parameter(layer, [&](const auto& p) { add_bytes(all, {&p.value}); });
  return all;
}

// Returns "name [shape]" of each parameter.
template <class L>
std::vector<std::string> names_of(const L& layer) {
  std::vector<std::string> names;
  for_each_parameter(
      layer, [&](const auto& p) { names.push_back(p.name + " " + to_string(p.value.shape())); });
  return names;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_LAYERS_SUPPORT_H_
