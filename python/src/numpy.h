// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_NUMPY_H_
#define QKV_PYTHON_SRC_NUMPY_H_

#include <nanobind/nanobind.h>

#include <qkv/dtype.h>
#include <qkv/view.h>

namespace qkv::python {

// References to the NumPy objects that the bindings use, looked up once. They are never released,
// because the interpreter may have ended before the process does.
class Numpy {
 public:
  Numpy();
  bool is_array(nanobind::handle object) const {
    return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(ndarray_.ptr())) != 0;
  }
  // Whether the object's class is ndarray itself, not a derived class.
  bool is_plain_array(nanobind::handle object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == ndarray_.ptr();
  }
  // Whether the object is a scalar of NumPy's boolean type.
  bool is_bool(nanobind::handle object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == bool_.ptr();
  }
  nanobind::object as_array(nanobind::handle object) const;
  // The NumPy dtype object. For bfloat16 it is the one of ml_dtypes, which must be installed.
  nanobind::object dtype(DType dtype) const;
  // Makes an uninitialised C-ordered array; `view` gets its memory.
  nanobind::object empty(DType dtype, const Dims& shape, View& view) const;

 private:
  nanobind::handle ndarray_, bool_, asarray_, empty_;
  nanobind::handle dtypes_[16];
};

const Numpy& numpy();

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_NUMPY_H_
