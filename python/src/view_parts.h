// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_VIEW_PARTS_H_
#define QKV_PYTHON_SRC_VIEW_PARTS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "arrays.h"

// What views of buffers and of DLPack's tensors are made with.
namespace qkv::python {

// str(object); what UTF-8 has no bytes for (lone surrogates) is escaped.
std::string text_of(nb::handle object);

// Integers of so many bytes; kNone for what there is no DType for.
DType signed_integer(std::size_t bytes);
DType unsigned_integer(std::size_t bytes);

// Throws TypeError for an array of a dtype that no argument can have.
[[noreturn]] void refuse_dtype(const Name& name, nb::handle object);
void check_rank(const Name& name, int rank);
bool is_aligned(const void* data, DType dtype);

// Shape and strides in units of bytes as Dims; nothing when the strides are no multiples of a unit.
struct ArrayLayout {
  Dims shape, strides;
};
template <class Size, class Stride>
std::optional<ArrayLayout> layout_of(int rank, const Size* shape, const Stride* strides,
                                     Index unit) {
  ArrayLayout layout;
  for (int axis = 0; axis < rank; ++axis) {
    layout.shape.push_back(static_cast<Index>(shape[axis]));
    const auto stride = static_cast<Index>(strides[axis]);
    // The stride of an axis of one element, or of an empty array, may be anything.
    if (stride % unit != 0 && shape[axis] > 1) return std::nullopt;
    layout.strides.push_back(stride / unit);
  }
  return layout;
}

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_VIEW_PARTS_H_
