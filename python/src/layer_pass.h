// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_LAYER_PASS_H_
#define QKV_PYTHON_SRC_LAYER_PASS_H_

#include <memory>
#include <optional>

#include <qkv/tensor.h>

#include "arrays.h"
#include "passes.h"
#include "results.h"

// Helpers of the bound layers other than attention layers.
namespace qkv::python {

// A forward pass of the layer L, kept for backward().
template <class L>
struct LayerPass {
  typename L::Saved saved;
  Array array;      // the input, if `saved` has a view of it
  nb::object like;  // gradients have the type of this array
  double work = 0;  // the forward pass's work, as run_call() takes it

  void release() {
    array = {};
    like.reset();
  }
};

// Returns the last forward pass. Throws Error, named after the backward pass `function`, if there
// is none.
template <class Pass>
std::shared_ptr<Pass> last_pass(const Passes<Pass>& passes, const char* function) {
  std::shared_ptr<Pass> pass = passes.last();
  if (!pass) throw_value_error({function, "forward"}, "must have been called before it");
  return pass;
}

// Makes a result of this shape; returns None without a shape, for inputs that the layer rejects.
inline nb::object make_result(const ResultMaker& maker, DType dtype,
                              const std::optional<Dims>& shape, View& view) {
  return shape ? maker.make(dtype, *shape, view) : nb::none();
}

// An array or list of integers, as a view of int32 or int64, which the layers take.
struct Integers {
  Array array;
  Tensor converted;  // holds the integers if the array has another type
  ConstView view;
};
Integers integers_of(nb::handle object, const Name& name);

inline double count_of(const ConstView& view) { return static_cast<double>(view.element_count()); }

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_LAYER_PASS_H_
