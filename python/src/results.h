// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_RESULTS_H_
#define QKV_PYTHON_SRC_RESULTS_H_

#include <nanobind/nanobind.h>

#include <qkv/view.h>

namespace qkv::python {

struct ExchangeApi;  // dlpack.h

// Makes result arrays of the type of an argument: NumPy's for NumPy arrays and plain buffers,
// otherwise those that the argument's own package makes from DLPack (torch.from_dlpack, or the
// array API's).
class ResultMaker {
 public:
  // `like` must have passed array_of. Throws TypeError if there is no known way to make its type.
  explicit ResultMaker(nanobind::handle like);
  // A new, uninitialised C-ordered array; `view` gets its memory, valid as long as the object.
  nanobind::object make(DType dtype, const Dims& shape, View& view) const;
  // The filled array from make(), for the caller. No view of it may be written afterwards:
  // from_dlpack may copy.
  nanobind::object finish(const nanobind::object& made) const;

 private:
  nanobind::object from_dlpack_;           // none for NumPy, or if exchange_ is set
  const ExchangeApi* exchange_ = nullptr;  // a faster way
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_RESULTS_H_
