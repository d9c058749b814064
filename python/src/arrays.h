// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ARRAYS_H_
#define QKV_PYTHON_SRC_ARRAYS_H_

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <qkv/view.h>

#include "argument_name.h"

// Views of Python arrays: NumPy arrays (with ml_dtypes also bfloat16), other buffers, and any CPU
// arrays that support DLPack. An array is copied only if no view can describe it: if its memory is
// misaligned, negated, in the other byte order, or has strides that are not whole elements.
namespace qkv::python {

namespace nb = nanobind;

// A view of an array, and the objects that keep its memory alive. Every operation needs the GIL.
struct Array {
  ConstView view{};
  nb::object owner{};
  nb::ndarray<nb::ro> tensor{};  // set if the memory came through __dlpack__
};

// Returns a view of a CPU array; None gives an absent view. Throws TypeError for other objects.
Array array_of(nb::handle object, const Name& name);

// Returns a view as array_of() does, and also takes lists and tuples of numbers, which are
// converted to the dtype `real` unless that is kNone.
Array array_or_sequence(nb::handle object, const Name& name, DType real);

// Returns a view of memory on a GPU, which Python gives as a tuple (address, dtype, shape, strides)
// of integers and the dtype's name; None gives an absent view. Throws TypeError for other objects.
Array array_on_device(nb::handle object, const Name& name);

// The view of an array that is written to. Throws Error if the array cannot be written to.
View writable_view(const Array& held, nb::handle array, const Name& name);

// Whether `memory` is the writable memory of a NumPy array or plain PyTorch tensor, not of a copy.
bool is_writable(nb::handle array, const void* memory);

// Advice for arrays on a GPU, to append to errors of `attention`; empty for other functions.
const char* gpu_hint(const Name& name);

// Describes an object for messages: "str 'abc'", "list of length 3".
std::string describe(nb::handle object);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ARRAYS_H_
