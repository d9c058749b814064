// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_VIEW_PARTS_H_
#define QKV_PYTHON_SRC_VIEW_PARTS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "arrays.h"

// Functions shared by the code that makes views of buffers and of DLPack tensors.
namespace qkv::python {

// Returns str(object); characters that UTF-8 cannot encode (lone surrogates) are escaped.
std::string text_of(nb::handle object);

// The integer type of this size in bytes; kNone if there is no such DType.
DType signed_integer(std::size_t bytes);
DType unsigned_integer(std::size_t bytes);

// Throws TypeError for an array of a dtype that the argument does not accept.
[[noreturn]] void refuse_dtype(const Name& name, nb::handle object);
void check_rank(const Name& name, int rank);
bool is_aligned(const void* data, DType dtype);

// A shape, and strides in elements. layout_of() takes strides in another measure, in which an
// element has the size `unit`; it returns nothing if a stride is not a whole number of elements.
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
    // The stride of an axis of size 0 or 1 may be anything.
    if (stride % unit != 0 && shape[axis] > 1) return std::nullopt;
    layout.strides.push_back(stride / unit);
  }
  return layout;
}

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_VIEW_PARTS_H_
