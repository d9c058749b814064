// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <qkv/error.h>
#include <qkv/view.h>

#include "core/integers.h"
#include "core/shapes.h"
#include "core/storage.h"

namespace qkv {
namespace {

// The number of bytes from the lowest address of an element to the end of the highest; nullopt if
// it overflows 63 bits. No size may be 0.
std::optional<Index> extent_in_bytes(DType dtype, const Dims& shape, const Dims& strides) {
  std::optional<Index> elements = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const auto reach = core::checked_multiply(shape[axis] - 1, strides[axis]);
    if (!reach) return std::nullopt;
    elements = *reach >= 0 ? core::checked_add(*elements, *reach)
                           : core::checked_subtract(*elements, *reach);
    if (!elements) return std::nullopt;
  }
  return core::checked_multiply(*elements, static_cast<Index>(size_of(dtype)));
}

// Reading an element at a misaligned address is undefined behaviour, so views are checked.
bool is_aligned(const void* data, DType dtype) {
  std::size_t alignment = dtype == DType::kQ8 ? alignof(BlockQ8) : 1;
  core::visit_dtype(dtype, [&]<class T>(T*) { alignment = alignof(T); });
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

void check_layout(const void* data, DType dtype, const Dims& shape, const Dims& strides) {
  if (size_of(dtype) == 0) {
    throw Error("View", "dtype", "must be an element type, got none", ErrorKind::kType);
  }
  if (shape.rank() != strides.rank()) {
    throw Error("View", "strides",
                "must be one for each axis, got " + to_string(strides) + " for the shape " +
                    to_string(shape));
  }
  if (core::count_elements("View", shape) == 0) return;
  if (data == nullptr) {
    throw Error("View", "data", "is null but the shape " + to_string(shape) + " has elements");
  }
  if (!is_aligned(data, dtype)) {
    throw Error("View", "data",
                "must be aligned for its elements, got an address that is not aligned for " +
                    std::string(name_of(dtype)) + " " + to_string(shape));
  }
  if (!extent_in_bytes(dtype, shape, strides)) {
    throw Error("View", "strides",
                "must reach less than 2^63 bytes, got " + to_string(strides) + " for " +
                    std::string(name_of(dtype)) + " " + to_string(shape));
  }
}

// The strides of the C-ordered array of this shape.
Dims strides_of(std::string_view function, const Dims& shape) {
  core::count_elements(function, shape);
  Dims strides = shape;
  Index stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= std::max<Index>(shape[axis], 1);
  }
  return strides;
}

}  // namespace

// ---- Dims -----------------------------------------------------------------------------------

Dims::Dims(std::span<const Index> values) {
  if (values.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error("Dims", "values",
                "must be at most " + std::to_string(kMaxRank) + " numbers, got " +
                    std::to_string(values.size()));
  }
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = static_cast<int>(values.size());
}

void Dims::push_back(Index value) {
  if (rank_ == kMaxRank) {
    throw Error("Dims", "values",
                "must be at most " + std::to_string(kMaxRank) + " numbers, got " +
                    to_string(*this) + " and then " + std::to_string(value));
  }
  values_[static_cast<std::size_t>(rank_)] = value;
  ++rank_;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (axis > 0) text += ',';
    text += std::to_string(dims[axis]);
  }
  return text + "]";
}

Index element_count(const Dims& shape) { return core::count_elements("element_count", shape); }

Dims contiguous_strides(const Dims& shape) { return strides_of("contiguous_strides", shape); }

// ---- views ----------------------------------------------------------------------------------

template <class Void>
BasicView<Void>::BasicView(Void* data, DType dtype, const Dims& shape, const Dims& strides)
    : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {
  check_layout(data, dtype, shape, strides);
}

template <class Void>
Dims BasicView<Void>::c_order(const Dims& shape) {
  return strides_of("View", shape);
}

template <class Void>
bool BasicView<Void>::is_contiguous() const noexcept {
  if (element_count() < 2) return true;
  Index stride = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (shape_[axis] == 1) continue;
    if (strides_[axis] != stride) return false;
    stride *= shape_[axis];
  }
  return true;
}

template <class Void>
void BasicView<Void>::require(DType dtype) const {
  if (dtype == dtype_) return;
  throw Error("View", "dtype",
              "must be " + std::string(name_of(dtype)) + " here, got " + describe(*this),
              ErrorKind::kType);
}

template <class Void>
Index BasicView<Void>::offset(const Dims& index) const {
  bool inside = index.rank() == rank();
  for (int axis = 0; inside && axis < rank(); ++axis) {
    inside = index[axis] >= 0 && index[axis] < shape_[axis];
  }
  if (!inside) {
    throw Error("View", "index",
                "must lie inside the array, got " + to_string(index) + " for " + describe(*this));
  }
  Index offset = 0;
  for (int axis = 0; axis < rank(); ++axis) offset += index[axis] * strides_[axis];
  return offset;
}

template class BasicView<void>;
template class BasicView<const void>;

std::string describe(const ConstView& view) {
  if (!view.given()) return "absent";
  return std::string(name_of(view.dtype())) + " " + to_string(view.shape());
}

}  // namespace qkv
