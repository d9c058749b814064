// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace qkv::core {
namespace {

// An axis with at least two elements, and the absolute value of its stride in bytes.
struct Axis {
  Index size = 0;
  Index stride = 0;
};

// The bytes of an array: {begin + sum_axis n_axis * stride_axis + byte}, 0 <= n_axis < size_axis, 0
// <= byte < element. The axes are in order of ascending stride.
struct Footprint {
  std::uintptr_t begin = 0;
  Index element = 0;
  std::array<Axis, kMaxRank> storage{};
  std::size_t rank = 0;

  std::span<const Axis> axes() const { return {storage.data(), rank}; }
};

bool is_empty(const ConstView& view) { return !view.given() || view.element_count() == 0; }

// Nothing overflows here, because each view was made with a check that its extent in bytes fits 63
// bits.
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

// The array's addresses modulo g lie in a circular interval that starts at its first byte. Returns
// the length of the interval, or nullopt if a stride of g or more is not a multiple of g. (An
// interval longer than g overlaps everything.)
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

// Returns (to - from) mod g, in 0..g-1.
Index distance_modulo(std::uintptr_t from, std::uintptr_t to, Index g) {
  const auto period = static_cast<std::uintptr_t>(g);
  if (to >= from) return static_cast<Index>((to - from) % period);
  return static_cast<Index>((period - (from - to) % period) % period);
}

// True if the modulus g proves that the arrays are disjoint, as for interleaved arrays.
bool disjoint_modulo(const Footprint& a, const Footprint& b, Index g) {
  const auto extent_a = extent_modulo(a, g);
  const auto extent_b = extent_modulo(b, g);
  if (!extent_a || !extent_b) return false;
  const Index distance = distance_modulo(a.begin, b.begin, g);
  return distance >= *extent_a && distance + *extent_b <= g;
}

// The addresses [begin, end) between which an array's elements are: a footprint without its axes.
struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

Range range_of(const ConstView& view) {
  const auto element = static_cast<Index>(size_of(view.dtype()));
  Index before = 0;  // reach before (<= 0) and after the data pointer, in elements
  Index behind = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const Index reach = view.size(axis) < 2 ? 0 : (view.size(axis) - 1) * view.stride(axis);
    (reach < 0 ? before : behind) += reach;
  }
  const auto data = reinterpret_cast<std::uintptr_t>(view.data());
  return {data - static_cast<std::uintptr_t>(-before * element),
          data + static_cast<std::uintptr_t>((behind + 1) * element)};
}

// True if the address ranges are disjoint, as for nearly all pairs of arrays. This test is cheap:
// unlike a footprint, a range needs no sorted axes.
bool apart(const Range& a, const Range& b) { return a.end <= b.begin || b.end <= a.begin; }

}  // namespace

bool may_overlap(const ConstView& a, const ConstView& b) {
  if (is_empty(a) || is_empty(b)) return false;
  if (apart(range_of(a), range_of(b))) return false;
  const Footprint first = footprint_of(a);
  const Footprint second = footprint_of(b);
  for (const Footprint* array : {&first, &second}) {
    for (const Axis& axis : array->axes()) {
      if (axis.stride > 0 && disjoint_modulo(first, second, axis.stride)) return false;
    }
  }
  return true;
}

bool self_overlaps(const ConstView& v) {
  if (is_empty(v) || v.is_contiguous()) return false;
  const Footprint array = footprint_of(v);
  // Each axis must step past all bytes that the axes of smaller strides reach.
  Index reach = array.element;
  for (const Axis& axis : array.axes()) {
    if (axis.stride < reach) return true;
    reach += (axis.size - 1) * axis.stride;
  }
  return false;
}

}  // namespace qkv::core
