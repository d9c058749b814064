// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "areas.h"
#include "call.h"
#include "errors.h"
#include "options.h"
#include "results.h"

namespace qkv::python {
namespace {

constexpr const char* kAttentionBackward = "attention_backward";

// Makes gradients of the shapes and dtypes of what they are the gradients of.
class GradientMaker {
 public:
  GradientMaker(const ResultMaker& maker, Layout layout) : maker_(maker), layout_(layout) {}

  // None where the source is absent.
  nb::object make(const ConstView& source, View& view) const {
    if (!source.given()) return nb::none();
    return maker_.make(source.dtype(), source.shape(), view);
  }
  // Of q, k or v, whose axes may stand in another order in memory.
  nb::object make_input(const ConstView& source, View& view) const {
    const ConstView given = as_heads_first(source, layout_);  // its own inverse
    nb::object gradient = make(given, view);
    view = as_heads_first(view, layout_);
    return gradient;
  }
  nb::object make_params(const Score& score, ScoreGradient& gradient) const {
    if (const auto* bilinear = std::get_if<Bilinear>(&score)) {
      BilinearGradient& to = gradient.emplace<BilinearGradient>();
      nb::dict params;
      params["W"] = make(bilinear->w, to.w);
      return params;
    }
    if (const auto* additive = std::get_if<Additive>(&score)) {
      AdditiveGradient& to = gradient.emplace<AdditiveGradient>();
      nb::dict params;
      params["Wq"] = make(additive->wq, to.wq);
      params["Wk"] = make(additive->wk, to.wk);
      params["v"] = make(additive->v, to.v);
      if (additive->b.given()) params["b"] = make(additive->b, to.b);
      return params;
    }
    return nb::none();
  }

 private:
  const ResultMaker& maker_;
  Layout layout_;
};

// Throws Error for inputs that are refused, before anything is made of their shapes.
ResultShapes checked_shapes(const Inputs& inputs) {
  try {
    return result_shapes(inputs);
  } catch (const Error& error) {
    throw of_function(error, kAttentionBackward);
  }
}

// outputs: (dout, out, lse, dlse, dweights); the result: (dq, dk, dv, dbias, dparams,
// dalibi_slopes, dsinks). The orders of _functions.py.
nb::tuple backward_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& outputs,
                        const nb::tuple& options, nb::handle threads) {
  CallArguments call = call_arguments(kAttentionBackward, q, k, v, options);
  const int thread_count = threads_of(kAttentionBackward, threads);
  constexpr std::array kNames = {"dout", "out", "lse", "dlse", "dweights"};
  if (nb::len(outputs) != kNames.size()) throw nb::type_error("qkv: outputs of another version");
  std::array<ConstView, kNames.size()> given;
  for (std::size_t n = 0; n < kNames.size(); ++n) {
    const nb::object array = outputs[n];
    given[n] = call.hold(array_of(array, {kAttentionBackward, kNames[n]})).view;
    if (n < 2 && given[n].given() && call.layout == Layout::kBthd) {
      if (given[n].rank() != 4) {
        throw_value_error({kAttentionBackward, kNames[n]},
                          "must have rank 4 with layout \"bthd\", got " + qkv::describe(given[n]));
      }
      given[n] = as_heads_first(given[n], call.layout);
    }
  }
  const ResultShapes shapes = in_layout(call.layout, [&] { return checked_shapes(call.inputs); });
  const Saved saved{given[1], given[2]};
  const OutputGradients from{given[0], given[3], given[4]};

  const ResultMaker maker(q);
  const GradientMaker gradients(maker, call.layout);
  InputGradients to;
  const nb::object dq = gradients.make_input(call.inputs.q, to.q);
  const nb::object dk = gradients.make_input(call.inputs.k, to.k);
  const nb::object dv = gradients.make_input(call.inputs.v, to.v);
  const nb::object dbias = gradients.make(call.options.bias, to.bias);
  const nb::object dparams = gradients.make_params(call.options.score, to.score);
  const nb::object dalibi = gradients.make(call.options.alibi, to.alibi);
  const nb::object dsinks = gradients.make(call.options.sinks, to.sinks);
  run_call(thread_count, 3 * work_of(call, shapes), [&](Context& context) {
    in_layout(call.layout,
              [&] { attention_backward(call.inputs, call.options, saved, from, to, context); });
  });
  if (!dparams.is_none()) {
    nb::dict params = nb::borrow<nb::dict>(dparams);
    for (const nb::handle name : params.keys()) params[name] = maker.finish(params[name]);
  }
  return nb::make_tuple(maker.finish(dq), maker.finish(dk), maker.finish(dv), maker.finish(dbias),
                        dparams, maker.finish(dalibi), maker.finish(dsinks));
}

}  // namespace

void bind_backward(nb::module_& module) {
  module.def("attention_backward", backward_call, nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
}

}  // namespace qkv::python
