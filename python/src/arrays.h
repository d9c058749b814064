// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_ARRAYS_H_
#define QKV_PYTHON_SRC_ARRAYS_H_

#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <qkv/view.h>

// Python arrays as views: NumPy's (bfloat16 of ml_dtypes too), other buffers, and any CPU array
// that supports DLPack. Nothing is copied except arrays that no view can describe: misaligned, or
// in the other byte order.
namespace qkv::python {

namespace nb = nanobind;

// For messages: the function and argument an array is passed to, and what it may hold.
struct Name {
  const char* function;  // "attention"
  const char* argument;  // "q"
  const char* types = "float64, float32, bfloat16 or float16";

  Name with_types(const char* other) const { return {function, argument, other}; }
};
inline constexpr const char* kIntegers = "an integer type";
inline constexpr const char* kFlags = "bool or an integer type";
inline constexpr const char* kRealsOrQ8 = "float64, float32, bfloat16, float16 or q8";
inline constexpr const char* kLayerReals = "float32 or float64";  // of layers without heads

// A view of an array and what keeps its memory alive. Made, copied and destroyed under the GIL.
struct Array {
  ConstView view{};
  nb::object owner{};
  nb::ndarray<nb::ro> tensor{};  // of DLPack
};

// None gives an absent view. Throws TypeError for anything but a CPU array, naming the rule.
Array array_of(nb::handle object, const Name& name);

// The same, also for lists and tuples of numbers, which get the dtype `real` unless that is kNone.
Array array_or_sequence(nb::handle object, const Name& name, DType real);

// Whether `memory` is that of a NumPy or PyTorch array itself, not of a copy, and is writable.
bool is_writable(nb::handle array, const void* memory);

// Throws the error for a wrong argument: "attention: q must be ..., got ...".
[[noreturn]] void throw_type_error(const Name& name, const std::string& detail);
[[noreturn]] void throw_value_error(const Name& name, const std::string& detail);

// Describes an object for messages: "str 'abc'", "list of length 3".
std::string describe(nb::handle object);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_ARRAYS_H_
