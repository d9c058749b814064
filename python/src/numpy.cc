// SPDX-License-Identifier: Apache-2.0
#include "numpy.h"

namespace qkv::python {

namespace nb = nanobind;

Numpy::Numpy() {
  const nb::module_ module = nb::module_::import_("numpy");
  ndarray_ = nb::object(module.attr("ndarray")).release();
  bool_ = nb::object(module.attr("bool_")).release();
  asarray_ = nb::object(module.attr("asarray")).release();
  empty_ = nb::object(module.attr("empty")).release();
  const nb::object dtype = module.attr("dtype");
#define QKV_PYTHON_DTYPE(name, type, text)                                      \
  if (DType::name != DType::kBFloat16) {                                        \
    dtypes_[static_cast<int>(DType::name)] = nb::object(dtype(text)).release(); \
  }
  QKV_FOR_EACH_DTYPE(QKV_PYTHON_DTYPE)
#undef QKV_PYTHON_DTYPE
  const nb::object q8 = nb::module_::import_("qkv._q8").attr("q8");
  dtypes_[static_cast<int>(DType::kQ8)] = nb::object(q8).release();
}

nb::object Numpy::as_array(nb::handle object) const { return asarray_(object); }

nb::object Numpy::dtype(DType dtype) const {
  if (dtype != DType::kBFloat16) return nb::borrow(dtypes_[static_cast<int>(dtype)]);
  const nb::object type = nb::module_::import_("ml_dtypes").attr("bfloat16");
  return nb::module_::import_("numpy").attr("dtype")(type);
}

nb::object Numpy::empty(DType dtype, const Dims& shape, View& view) const {
  const nb::object sizes = nb::steal(PyTuple_New(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis) {
    NB_TUPLE_SET_ITEM(sizes.ptr(), axis, PyLong_FromLongLong(shape[axis]));
  }
  const bool bits = dtype == DType::kBFloat16;  // bfloat16 has no format letter
  nb::object array = empty_(sizes, dtypes_[static_cast<int>(bits ? DType::kUInt16 : dtype)]);
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_WRITABLE) != 0) nb::raise_python_error();
  view = View(buffer.buf, dtype, shape, contiguous_strides(shape));
  PyBuffer_Release(&buffer);
  if (bits) array = array.attr("view")(this->dtype(dtype));
  return array;
}

const Numpy& numpy() {
  static const Numpy* const kNumpy = new Numpy;
  return *kNumpy;
}

}  // namespace qkv::python
