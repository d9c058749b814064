// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_RESULTS_H_
#define QKV_PYTHON_SRC_RESULTS_H_

#include <nanobind/nanobind.h>

#include <qkv/tensor.h>
#include <qkv/view.h>

namespace qkv::python {

struct ExchangeApi;  // dlpack.h

// Makes result arrays of the type of an argument: NumPy arrays for NumPy arrays and plain buffers;
// for other arguments, the arrays that the argument's package makes from DLPack (by
// torch.from_dlpack, or by from_dlpack of the array API).
class ResultMaker {
 public:
  // `like` must have passed array_of. Throws TypeError if there is no known way to make its type.
  explicit ResultMaker(nanobind::handle like);
  // Makes results on a GPU by a function of Python, which gets a shape and the name of a dtype, and
  // returns a C-ordered array of its own and the address of its memory.
  static ResultMaker on_device(nanobind::object make);
  // Makes an uninitialised C-ordered array; `view` gets its memory, valid as long as the object.
  nanobind::object make(DType dtype, const Dims& shape, View& view) const;
  // The array to return to Python, given the filled array from make(). No view of it may be written
  // to afterwards, because from_dlpack may copy.
  nanobind::object finish(const nanobind::object& made) const;

 private:
  ResultMaker() = default;

  nanobind::object make_{};                // the function given to on_device()
  nanobind::object from_dlpack_;           // None for NumPy, or if exchange_ is set
  const ExchangeApi* exchange_ = nullptr;  // C functions, faster than from_dlpack_
};

// A NumPy array that owns the memory of a tensor, which must be given.
nanobind::object array_owning(Tensor tensor);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_RESULTS_H_
