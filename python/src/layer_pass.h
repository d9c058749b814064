// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYER_PASS_H_
#define QKV_PYTHON_SRC_LAYER_PASS_H_

#include <memory>
#include <optional>

#include <qkv/tensor.h>

#include "arrays.h"
#include "passes.h"
#include "results.h"

// What the layers of sequence models besides attention share.
namespace qkv::python {

// A forward pass of L: what it saved, and the array whose type results have, kept for reuse.
template <class L>
struct LayerPass {
  typename L::Saved saved;
  Array array;
  nb::object like;
  double work = 0;

  void release() {
    array = {};
    like.reset();
  }
};

template <class Pass>
std::shared_ptr<Pass> pass_to_undo(const Passes<Pass>& passes, const char* function) {
  std::shared_ptr<Pass> pass = passes.last();
  if (!pass) throw_value_error({function, "forward"}, "must have been called before it");
  return pass;
}

// A result, if inputs that the layer rejects leave it a shape; else None.
inline nb::object make_result(const ResultMaker& maker, DType dtype,
                              const std::optional<Dims>& shape, View& view) {
  return shape ? maker.make(dtype, *shape, view) : nb::none();
}

// Integer arrays of any type and lists of integers, in a type that layers accept.
struct Integers {
  Array array;
  Tensor converted;  // if it has another type
  ConstView view;
};
Integers integers_of(nb::handle object, const Name& name);

inline double count_of(const ConstView& view) { return static_cast<double>(view.element_count()); }

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYER_PASS_H_
