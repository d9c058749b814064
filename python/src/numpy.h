// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_NUMPY_H_
#define QKV_PYTHON_SRC_NUMPY_H_

#include <nanobind/nanobind.h>

#include <qkv/dtype.h>
#include <qkv/view.h>

namespace qkv::python {

// The NumPy objects that are needed, looked up once. Held for the life of the process: at its end
// there may be no interpreter left to release them to.
class Numpy {
 public:
  Numpy();
  bool is_array(nanobind::handle object) const {
    return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(ndarray_.ptr())) != 0;
  }
  // Of the class itself, not a derived one.
  bool is_plain_array(nanobind::handle object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == ndarray_.ptr();
  }
  nanobind::object as_array(nanobind::handle object) const;
  // The dtype object; bfloat16 is that of ml_dtypes, which must be installed.
  nanobind::object dtype(DType dtype) const;
  // A new, uninitialised C-ordered array, and its memory.
  nanobind::object empty(DType dtype, const Dims& shape, View& view) const;

 private:
  nanobind::handle ndarray_, asarray_, empty_;
  nanobind::handle dtypes_[16];
};

const Numpy& numpy();

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_NUMPY_H_
