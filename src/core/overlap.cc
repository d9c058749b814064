// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace qkv::core {
namespace {

// An axis with at least two elements, its stride made positive; bytes.
struct Axis {
  Index size = 0;
  Index stride = 0;
};

// The bytes of an array: {begin + sum_axis n_axis * stride_axis + byte}, 0 <= n_axis < size_axis,
// 0 <= byte < element. Axes in order of ascending stride.
struct Footprint {
  std::uintptr_t begin = 0;
  Index element = 0;
  std::array<Axis, kMaxRank> storage{};
  std::size_t rank = 0;

  std::span<const Axis> axes() const { return {storage.data(), rank}; }
  Index extent() const {
    Index bytes = element;
    for (const Axis& axis : axes()) bytes += (axis.size - 1) * axis.stride;
    return bytes;
  }
};

bool is_empty(const ConstView& view) { return !view.given() || view.element_count() == 0; }

// No overflow: a view's extent in bytes fits (checked when it was made).
Footprint footprint_of(const ConstView& view) {
  Footprint result;
  result.element = static_cast<Index>(size_of(view.dtype()));
  result.begin = reinterpret_cast<std::uintptr_t>(view.data());
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) < 2) continue;
    Index stride = view.stride(axis) * result.element;
    if (stride < 0) {
      result.begin -= static_cast<std::uintptr_t>((view.size(axis) - 1) * -stride);
      stride = -stride;
    }
    result.storage[result.rank++] = {view.size(axis), stride};
  }
  std::sort(result.storage.begin(), result.storage.begin() + static_cast<Index>(result.rank),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  return result;
}

// Modulo g bytes, the array lies in the circular interval of this length from its begin. Axes with
// a stride of g or more must be multiples of it: nullopt if they are not. (The interval may be
// longer than the period; it then overlaps everything.)
std::optional<Index> extent_modulo(const Footprint& array, Index g) {
  Index extent = array.element;
  for (const Axis& axis : array.axes()) {
    if (axis.stride < g) {
      extent += (axis.size - 1) * axis.stride;
    } else if (axis.stride % g != 0) {
      return std::nullopt;
    }
  }
  return extent;
}

// (to - from) mod g, in 0..g-1.
Index distance_modulo(std::uintptr_t from, std::uintptr_t to, Index g) {
  const auto period = static_cast<std::uintptr_t>(g);
  if (to >= from) return static_cast<Index>((to - from) % period);
  return static_cast<Index>((period - (from - to) % period) % period);
}

// Proved by the modulus g, for interleaved arrays.
bool disjoint_modulo(const Footprint& a, const Footprint& b, Index g) {
  const auto extent_a = extent_modulo(a, g);
  const auto extent_b = extent_modulo(b, g);
  if (!extent_a || !extent_b) return false;
  const Index distance = distance_modulo(a.begin, b.begin, g);
  return distance >= *extent_a && distance + *extent_b <= g;
}

// Proved by the address ranges.
bool apart(const Footprint& a, const Footprint& b) {
  if (a.begin <= b.begin) return b.begin - a.begin >= static_cast<std::uintptr_t>(a.extent());
  return a.begin - b.begin >= static_cast<std::uintptr_t>(b.extent());
}

}  // namespace

bool may_overlap(const ConstView& a, const ConstView& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Footprint first = footprint_of(a);
  const Footprint second = footprint_of(b);
  if (apart(first, second)) return false;
  for (const Footprint* array : {&first, &second}) {
    for (const Axis& axis : array->axes()) {
      if (axis.stride > 0 && disjoint_modulo(first, second, axis.stride)) return false;
    }
  }
  return true;
}

bool self_overlaps(const ConstView& v) {
  if (is_empty(v)) return false;
  const Footprint array = footprint_of(v);
  // Each axis must step past everything that the axes of smaller strides reach.
  Index reach = array.element;
  for (const Axis& axis : array.axes()) {
    if (axis.stride < reach) return true;
    reach += (axis.size - 1) * axis.stride;
  }
  return false;
}

}  // namespace qkv::core
