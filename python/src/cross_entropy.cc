// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <qkv/layers/cross_entropy.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "errors.h"
#include "layer_call.h"
#include "layer_pass.h"

namespace qkv::python {
namespace {

const Method kForward{"CrossEntropy.forward", MethodArrays::kX};
const Method kBackward{"CrossEntropy.backward", MethodArrays::kX};

// Whether an object is a Python or NumPy number, or an array of rank 0.
bool is_one_number(nb::handle object) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return true;
  const nb::object axes = nb::getattr(object, "ndim", nb::none());
  return PyLong_Check(axes.ptr()) && PyLong_AsLong(axes.ptr()) == 0;
}

class BoundCrossEntropy {
 public:
  explicit BoundCrossEntropy(CrossEntropy layer) : layer_(std::move(layer)) {}

  // Returns the losses [N]; with return_log_probabilities, (losses, log_probabilities), both [N].
  nb::object forward(nb::handle logits, nb::handle targets, nb::handle return_log_probabilities,
                     nb::handle threads) {
    return as_method(kForward, [&] {
      return passes_.run([&](Pass& pass) {
        const char* const function = kForward.name.c_str();
        pass.array = array_of(logits, {function, "logits", kLayerReals});
        const Integers classes = integers_of(targets, {function, "targets"});
        const bool both = flag_of(return_log_probabilities, {function, "return_log_probabilities"});
        pass.like = nb::borrow(logits);
        const ConstView& from = pass.array.view;
        std::optional<Dims> shape;
        if (from.rank() == 2 && is_real(from.dtype())) shape = Dims(from.size(0));
        const ResultMaker maker(logits);
        CrossEntropyOutputs outputs;
        const nb::object losses = make_result(maker, from.dtype(), shape, outputs.losses);
        nb::object log_probabilities;
        if (both) {
          log_probabilities = make_result(maker, from.dtype(), shape, outputs.log_probabilities);
        }
        pass.work = 10 * count_of(from);
        run_call(threads_of(function, threads), pass.work, [&](Context& context) {
          layer_.forward(from, classes.view, pass.saved, outputs, context);
        });
        if (!both) return maker.finish(losses);
        return nb::object(nb::make_tuple(maker.finish(losses), maker.finish(log_probabilities)));
      });
    });
  }

  // `dlosses` is an array [N], or one number for all rows.
  nb::object backward(nb::handle dlosses, nb::handle threads) {
    return as_method(kBackward, [&] {
      const char* const function = kBackward.name.c_str();
      const auto pass = last_pass(passes_, function);
      const ConstView& logits = pass->saved.logits;
      const Name name{function, "dlosses", kLayerReals};
      const bool is_number = is_one_number(dlosses);
      const Array array = is_number ? Array{} : array_of(dlosses, name);
      const double number = is_number ? number_of(dlosses, name) : 0;
      const Tensor same = convert(ConstView(&number, Dims()), logits.dtype());
      const ConstView dlosses_of_rows =
          is_number ? broadcast_to(same, Dims(logits.size(0))) : ConstView(array.view);
      const ResultMaker maker(pass->like);
      View dlogits;
      const nb::object made = maker.make(logits.dtype(), logits.shape(), dlogits);
      run_call(threads_of(function, threads), pass->work, [&](Context& context) {
        layer_.backward(pass->saved, dlosses_of_rows, dlogits, Write::kOverwrite, context);
      });
      return maker.finish(made);
    });
  }

 private:
  using Pass = LayerPass<CrossEntropy>;
  CrossEntropy layer_;
  Passes<Pass> passes_;
};

void make_cross_entropy(BoundCrossEntropy* self, nb::handle label_smoothing,
                        nb::handle ignore_index, nb::handle weight) {
  constexpr const char* kName = "CrossEntropy";
  const double smoothing = number_of(label_smoothing, {kName, "label_smoothing"});
  std::optional<Index> ignored;
  if (!ignore_index.is_none()) ignored = index_of(ignore_index, {kName, "ignore_index"});
  const Array weights = array_or_sequence(weight, {kName, "weight"}, DType::kFloat64);
  try {
    new (self) BoundCrossEntropy(CrossEntropy(smoothing, ignored, weights.view));
  } catch (const Error& error) {
    throw with_names(error, kName, {{"class_weights", "weight"}});
  }
}

}  // namespace

void bind_cross_entropy(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  nb::class_<BoundCrossEntropy>(module, "CrossEntropy")
      .def("__init__", make_cross_entropy, any(), any(), any())
      .def("forward", &BoundCrossEntropy::forward, any(), any(), any(), any())
      .def("backward", &BoundCrossEntropy::backward, any(), any());
}

}  // namespace qkv::python
