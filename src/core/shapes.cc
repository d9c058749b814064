// SPDX-License-Identifier: Apache-2.0
#include "core/shapes.h"

#include <algorithm>

#include <qkv/error.h>

#include "core/integers.h"

namespace qkv::core {

Index count_elements(std::string_view function, const Dims& shape) {
  Index count = 1;
  bool empty = false;
  for (const Index size : shape) {
    if (size < 0) {
      throw Error(function, "shape", "must be 0 or more on each axis, got " + to_string(shape));
    }
    empty = empty || size == 0;
    // A size of 0 counts as 1, because the strides of an empty array are products too.
    const auto product = checked_multiply(count, std::max<Index>(size, 1));
    if (!product) {
      throw Error(
          function, "shape",
          "may have at most 2^63 - 1 elements (sizes of 0 counted as 1), got " + to_string(shape));
    }
    count = *product;
  }
  return empty ? 0 : count;
}

std::optional<Dims> broadcast_shapes(const Dims& a, const Dims& b) {
  const Dims& longer = a.rank() >= b.rank() ? a : b;
  const Dims& shorter = a.rank() >= b.rank() ? b : a;
  Dims result = longer;
  const int missing = longer.rank() - shorter.rank();
  for (int axis = 0; axis < shorter.rank(); ++axis) {
    Index& size = result[axis + missing];
    if (size == 1) {
      size = shorter[axis];
    } else if (shorter[axis] != 1 && shorter[axis] != size) {
      return std::nullopt;
    }
  }
  return result;
}

Dims sub_dims(const Dims& dims, int first, int last) {
  Dims result;
  for (int axis = first; axis < last; ++axis) result.push_back(dims[axis]);
  return result;
}

}  // namespace qkv::core
