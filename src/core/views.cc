// SPDX-License-Identifier: Apache-2.0
// Functions that return another view of a view's elements: slice, permute, transpose, reshape,
// broadcast_to.
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include <qkv/error.h>
#include <qkv/tensor.h>

#include "core/integers.h"
#include "core/shapes.h"

namespace qkv {
namespace {

void require_given(std::string_view function, const ConstView& view) {
  if (!view.given()) throw Error(function, "view", "is absent");
}

// Returns `axis` counted from the front. A negative `axis` counts from the end.
int axis_of(std::string_view function, std::string_view argument, const ConstView& view,
            Index axis) {
  const Index front = axis < 0 ? axis + view.rank() : axis;
  if (front < 0 || front >= view.rank()) {
    throw Error(function, argument,
                "must name an axis of " + describe(view) + ", got " + std::to_string(axis));
  }
  return static_cast<int>(front);
}

// ---- slice ----------------------------------------------------------------------------------

[[noreturn]] void refuse_bound(const ConstView& view, int axis, std::string_view argument,
                               Index value, bool forward) {
  const Index size = view.size(axis);
  const std::string range = forward ? "0 to " + std::to_string(size)
                                    : "-1 to " + std::to_string(size - 1) + " (negative step)";
  throw Error("slice", argument,
              "must be in " + range + " for axis " + std::to_string(axis) + " of " +
                  describe(view) + ", got " + std::to_string(value));
}

// The number of elements start, start + step, ... before stop. `start` and `stop` lie within the
// axis, so their difference does not overflow.
Index slice_count(Index start, Index stop, Index step) {
  const Index span = step > 0 ? stop - start : start - stop;
  if (span <= 0) return 0;
  // The quotient is negated, not the step: -step would overflow for the smallest Index.
  return step > 0 ? (span - 1) / step + 1 : -((span - 1) / step) + 1;
}

template <class Void>
BasicView<Void> slice_any(const BasicView<Void>& view, int named_axis, Index start, Index stop,
                          Index step) {
  require_given("slice", view);
  const int axis = axis_of("slice", "axis", view, named_axis);
  if (step == 0) throw Error("slice", "step", "must not be 0");
  const bool forward = step > 0;
  const Index lowest = forward ? 0 : -1;
  const Index highest = view.size(axis) + lowest;
  if (start < lowest || start > highest) refuse_bound(view, axis, "start", start, forward);
  if (stop < lowest || stop > highest) refuse_bound(view, axis, "stop", stop, forward);

  Dims shape = view.shape();
  Dims strides = view.strides();
  shape[axis] = slice_count(start, stop, step);
  const auto stride = core::checked_multiply(strides[axis], step);
  if (!stride) {
    throw Error("slice", "step",
                std::to_string(step) + " times the stride " + std::to_string(strides[axis]) +
                    " does not fit in 64 bits");
  }
  strides[axis] = *stride;
  // The pointer of an array without elements may be null, so it is not moved.
  const bool empty = element_count(shape) == 0;
  const Index moved =
      empty ? 0 : start * view.stride(axis) * static_cast<Index>(size_of(view.dtype()));
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return {static_cast<Byte*>(view.data()) + moved, view.dtype(), shape, strides};
}

// ---- permute --------------------------------------------------------------------------------

template <class Void>
BasicView<Void> permute_any(const BasicView<Void>& view, const Dims& axes) {
  require_given("permute", view);
  const std::string rule = "must name each axis of " + describe(view) + " once, got ";
  if (axes.rank() != view.rank()) throw Error("permute", "axes", rule + to_string(axes));
  Dims shape = view.shape();
  Dims strides = view.strides();
  std::array<bool, kMaxRank> used{};
  for (int to = 0; to < axes.rank(); ++to) {
    const int from = axis_of("permute", "axes", view, axes[to]);
    bool& seen = used[static_cast<std::size_t>(from)];
    if (seen) throw Error("permute", "axes", rule + to_string(axes));
    seen = true;
    shape[to] = view.size(from);
    strides[to] = view.stride(from);
  }
  return {view.data(), view.dtype(), shape, strides};
}

template <class Void>
BasicView<Void> transpose_any(const BasicView<Void>& view, int axis_a, int axis_b) {
  require_given("transpose", view);
  const int a = axis_of("transpose", "axis_a", view, axis_a);
  const int b = axis_of("transpose", "axis_b", view, axis_b);
  Dims shape = view.shape();
  Dims strides = view.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return {view.data(), view.dtype(), shape, strides};
}

// ---- reshape --------------------------------------------------------------------------------

// Returns the requested shape with a -1 in it replaced by the size that fits. The result has as
// many elements as the view.
Dims complete_shape(const ConstView& view, const Dims& wanted) {
  Dims shape = wanted;
  int unknown = -1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] >= 0) continue;
    if (shape[axis] != -1 || unknown >= 0) {
      throw Error("reshape", "shape",
                  "may hold sizes and one -1, which is inferred, got " + to_string(wanted));
    }
    unknown = axis;
    shape[axis] = 1;
  }
  const Index known = core::count_elements("reshape", shape);
  const Index count = view.element_count();
  if (unknown >= 0 && known == 0) {
    throw Error("reshape", "shape",
                "has -1 next to a size of 0, where any size would fit, got " + to_string(wanted));
  }
  if (unknown >= 0 ? count % known != 0 : count != known) {
    throw Error("reshape", "shape",
                to_string(wanted) + " does not hold the " + std::to_string(count) +
                    " elements of " + describe(view));
  }
  if (unknown >= 0) shape[unknown] = count / known;
  return shape;
}

// The axes whose size is not 1. The strides of the other axes do not matter.
Dims long_axes(const Dims& shape) {
  Dims axes;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1) axes.push_back(axis);
  }
  return axes;
}

[[noreturn]] void refuse_merge(const ConstView& view, const Dims& shape, int axis, int next) {
  throw Error("reshape", "view",
              "needs a copy to reshape " + describe(view) + " to " + to_string(shape) +
                  ", because axes " + std::to_string(axis) + " and " + std::to_string(next) +
                  " (sizes " + std::to_string(view.size(axis)) + " and " +
                  std::to_string(view.size(next)) + ", strides " +
                  std::to_string(view.stride(axis)) + " and " + std::to_string(view.stride(next)) +
                  ") cannot be merged; call reshape(contiguous(view), ...)");
}

// Computes the strides with which the view's elements, in C order, have the new shape. The old and
// the new axes are split into the shortest groups whose sizes have equal products. The old axes of
// a group must merge into one: each stride must be the next axis's size times its stride.
Dims reshaped_strides(const ConstView& view, const Dims& shape) {
  if (view.element_count() == 0) return contiguous_strides(shape);
  Dims strides = contiguous_strides(shape);
  const Dims from = long_axes(view.shape());
  const Dims to = long_axes(shape);
  const auto old_axis = [&](int n) { return static_cast<int>(from[n]); };
  const auto new_axis = [&](int n) { return static_cast<int>(to[n]); };
  int o = 0;
  int n = 0;
  while (o < from.rank()) {
    Index old_product = view.size(old_axis(o));
    Index new_product = shape[new_axis(n)];
    int o_end = o + 1;
    int n_end = n + 1;
    while (old_product != new_product) {
      if (old_product < new_product) {
        const int axis = old_axis(o_end - 1);
        const int next = old_axis(o_end);
        const auto even = core::checked_multiply(view.size(next), view.stride(next));
        if (even != view.stride(axis)) refuse_merge(view, shape, axis, next);
        old_product *= view.size(old_axis(o_end++));
      } else {
        new_product *= shape[new_axis(n_end++)];
      }
    }
    Index stride = view.stride(old_axis(o_end - 1));
    for (int axis = n_end - 1; axis >= n; --axis) {
      strides[new_axis(axis)] = stride;
      // The stride to the left of the group's first axis is not needed, and might overflow.
      if (axis > n) stride *= shape[new_axis(axis)];
    }
    o = o_end;
    n = n_end;
  }
  return strides;
}

template <class Void>
BasicView<Void> reshape_any(const BasicView<Void>& view, const Dims& wanted) {
  require_given("reshape", view);
  const Dims shape = complete_shape(view, wanted);
  return {view.data(), view.dtype(), shape, reshaped_strides(view, shape)};
}

}  // namespace

View slice(const View& view, int axis, Index start, Index stop, Index step) {
  return slice_any(view, axis, start, stop, step);
}
ConstView slice(const ConstView& view, int axis, Index start, Index stop, Index step) {
  return slice_any(view, axis, start, stop, step);
}
View permute(const View& view, const Dims& axes) { return permute_any(view, axes); }
ConstView permute(const ConstView& view, const Dims& axes) { return permute_any(view, axes); }
View transpose(const View& view, int axis_a, int axis_b) {
  return transpose_any(view, axis_a, axis_b);
}
ConstView transpose(const ConstView& view, int axis_a, int axis_b) {
  return transpose_any(view, axis_a, axis_b);
}
View reshape(const View& view, const Dims& shape) { return reshape_any(view, shape); }
ConstView reshape(const ConstView& view, const Dims& shape) { return reshape_any(view, shape); }

ConstView broadcast_to(const ConstView& view, const Dims& shape) {
  require_given("broadcast_to", view);
  core::count_elements("broadcast_to", shape);
  const auto common = core::broadcast_shapes(view.shape(), shape);
  if (!common || !(*common == shape)) {
    throw Error("broadcast_to", "view",
                describe(view) + " does not broadcast to " + to_string(shape));
  }
  Dims strides = shape;
  const int missing = shape.rank() - view.rank();
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool own = axis >= missing && view.size(axis - missing) == shape[axis];
    strides[axis] = own ? view.stride(axis - missing) : 0;
  }
  return {view.data(), view.dtype(), shape, strides};
}

}  // namespace qkv
