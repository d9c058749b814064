// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_RESULTS_H_
#define QKV_PYTHON_SRC_RESULTS_H_

#include <nanobind/nanobind.h>

#include <qkv/view.h>

namespace qkv::python {

struct ExchangeApi;  // dlpack.h

// Makes result arrays of the kind of an argument: NumPy's for NumPy's and plain buffers, else those
// that the argument's own package makes of DLPack (torch.from_dlpack, or the array API's).
class ResultMaker {
 public:
  // `like` must have passed array_of. Throws TypeError when nothing is known to make its kind.
  explicit ResultMaker(nanobind::handle like);
  // A new C-ordered array, not filled; `view` gets its memory, which is there as long as the
  // object.
  nanobind::object make(DType dtype, const Dims& shape, View& view) const;
  // What make() gave, filled, as the array for the caller. No view of it is written any more:
  // from_dlpack may copy.
  nanobind::object finish(const nanobind::object& made) const;

 private:
  nanobind::object from_dlpack_;           // none for NumPy, and where there is
  const ExchangeApi* exchange_ = nullptr;  // a shorter way
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_RESULTS_H_
