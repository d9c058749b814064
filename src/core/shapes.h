// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_SHAPES_H_
#define QKV_CORE_SHAPES_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include <qkv/view.h>

// Arithmetic on shapes, and the one loop over all elements of strided arrays.
namespace qkv::core {

// Computes element_count(shape). Errors name `function`, the public function that was called.
Index count_elements(std::string_view function, const Dims& shape);

// Returns the shape to which both shapes broadcast, aligned from the right as in NumPy; nullopt if
// they do not broadcast.
std::optional<Dims> broadcast_shapes(const Dims& a, const Dims& b);

// Returns the axes [first, last) of a list of sizes or strides.
Dims sub_dims(const Dims& dims, int first, int last);

// Calls f(offsets, index) for every index of `shape` in C order. offsets[n] is the offset in
// elements of the index under strides[n]. Strides must have the rank of the shape.
template <std::size_t N, class F>
void for_each_offset(const Dims& shape, const std::array<Dims, N>& strides, const F& f) {
  Dims index = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 0) return;
    index[axis] = 0;
  }
  std::array<Index, N> offsets{};
  for (int axis = 0; axis >= 0;) {
    f(offsets, index);
    for (axis = shape.rank() - 1; axis >= 0; --axis) {
      if (index[axis] + 1 < shape[axis]) {
        ++index[axis];
        for (std::size_t n = 0; n < N; ++n) offsets[n] += strides[n][axis];
        break;
      }
      for (std::size_t n = 0; n < N; ++n) offsets[n] -= index[axis] * strides[n][axis];
      index[axis] = 0;
    }
  }
}

}  // namespace qkv::core

#endif  // QKV_CORE_SHAPES_H_
