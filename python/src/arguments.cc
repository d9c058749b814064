// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <string_view>

#include "numpy.h"

namespace qkv::python {
namespace {

// Clears the pending Python error and returns true if it is of `kind`, which a conversion raises to
// reject an object. Other errors (KeyboardInterrupt, the object's own) must propagate.
bool is_refusal(PyObject* kind) {
  if (PyErr_ExceptionMatches(kind) == 0) return false;
  PyErr_Clear();
  return true;
}

// Whether a NumPy object is complex; NumPy would make it a real number with only a warning.
bool is_complex(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object.attr("dtype"), "kind")) return false;
  return nb::object(object.attr("dtype").attr("kind")).equal(nb::str("c"));
}

// The integer that the object's __index__ returns.
nb::object integer_of(nb::handle object, const Name& name) {
  if (!is_flag(object)) {
    PyObject* const integer = PyNumber_Index(object.ptr());
    if (integer != nullptr) return nb::steal(integer);
    if (!is_refusal(PyExc_TypeError)) nb::raise_python_error();
  }
  throw_type_error(name, "must be an integer, got " + describe(object));
}

}  // namespace

double number_of(nb::handle object, const Name& name) {
  if (PyFloat_CheckExact(object.ptr()) != 0) return PyFloat_AsDouble(object.ptr());
  if (!is_flag(object) && !is_complex(object)) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value != -1 || PyErr_Occurred() == nullptr) return value;
    if (is_refusal(PyExc_OverflowError)) {
      throw_value_error(name, "must fit in float64, got " + describe(object));
    }
    // PyTorch tensors of several elements raise RuntimeError here.
    if (!is_refusal(PyExc_TypeError) && !is_refusal(PyExc_ValueError) &&
        !is_refusal(PyExc_RuntimeError)) {
      nb::raise_python_error();
    }
  }
  throw_type_error(name, "must be a number, got " + describe(object));
}

Index index_of(nb::handle object, const Name& name) {
  const nb::object integer = integer_of(object, name);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  if (overflow != 0) throw_value_error(name, "must fit in 64 bits, got " + describe(integer));
  return value;
}

std::uint64_t seed_of(nb::handle object, const Name& name) {
  const nb::object integer = integer_of(object, name);
  const unsigned long long value = PyLong_AsUnsignedLongLong(integer.ptr());
  if (PyErr_Occurred() == nullptr) return value;
  if (!is_refusal(PyExc_OverflowError)) nb::raise_python_error();
  throw_value_error(name, "must be in 0 to 2^64-1, got " + describe(integer));
}

bool is_flag(nb::handle object) {
  return PyBool_Check(object.ptr()) != 0 || numpy().is_bool(object);
}

bool flag_of(nb::handle object, const Name& name) {
  if (object.ptr() == Py_False) return false;
  if (object.ptr() == Py_True) return true;
  if (!is_flag(object)) throw_type_error(name, "must be True or False, got " + describe(object));
  return PyObject_IsTrue(object.ptr()) == 1;
}

int word_of(nb::handle object, const Name& name, std::span<const std::string_view> words,
            const char* others) {
  std::string list = others;
  std::size_t left = words.size();
  for (const std::string_view word : words) {
    --left;
    if (!list.empty()) list += left == 0 ? " or " : ", ";
    list += "\"" + std::string(word) + "\"";
  }
  if (!nb::isinstance<nb::str>(object)) {
    throw_type_error(name, "must be " + list + ", got " + describe(object));
  }
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (utf8 == nullptr) PyErr_Clear();  // lone surrogates match no word
  const std::string_view came(utf8, utf8 == nullptr ? 0 : static_cast<std::size_t>(size));
  int position = 0;
  for (const std::string_view word : words) {
    if (came == word) return position;
    ++position;
  }
  throw_value_error(name, "must be " + list + ", got " + describe(object));
}

}  // namespace qkv::python
