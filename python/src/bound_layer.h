// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_BOUND_LAYER_H_
#define QKV_PYTHON_SRC_BOUND_LAYER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include <qkv/layers.h>

#include "arguments.h"
#include "attention.h"
#include "call.h"
#include "expressions.h"
#include "held_layer.h"
#include "layer_call.h"
#include "layer_parameters.h"
#include "passes.h"
#include "results.h"

namespace qkv::python {

// An attention layer as bound to Python: the layer, its dropout's seed and step, and its passes.
template <class L>
class BoundLayer {
  static constexpr bool kSelf = std::is_same_v<L, SelfAttention>;
  static constexpr auto kArrays = kSelf ? MethodArrays::kX : MethodArrays::kQueriesKeysValues;

 public:
  BoundLayer(const char* name, L layer, double dropout)
      : forward_{name + std::string(".forward"), kArrays},
        backward_{name + std::string(".backward"), kArrays},
        layer_(std::move(layer)),
        dropout_(dropout) {}

  // `arrays` and `options` are as in layer_arguments(), `wanted` (the requested results) as in
  // Extras, `mode` as in run_of(). Returns out, or with extras a named tuple.
  nb::object forward(const nb::tuple& arrays, const nb::tuple& options, const nb::tuple& wanted,
                     const nb::tuple& mode, nb::handle threads) {
    return as_method(forward_, [&] {
      return passes_.run([&](Pass& pass) {
        CallArguments call = layer_arguments(forward_, arrays, options);
        const int thread_count = threads_of(forward_.name.c_str(), threads);
        RunState run = run_of(forward_, mode, last_run_, dropout_);
        const auto inputs = layer_inputs(call);
        const LayerShapes shapes = shapes_or_refusal(call.inputs, inputs, run, pass);

        pass.like = arrays[0];
        const ResultMaker maker(pass.like);
        Extras extras(forward_.name.c_str(), wanted, maker);
        Outputs outputs;
        pass.out = maker.make(call.inputs.q.dtype(), shapes.out, outputs.out);
        pass.out_shape = shapes.out;
        extras.make(shapes.results, -1, call.inputs.q.dtype(), outputs);
        pass.work = work(call.inputs, outputs.out);
        run_call(thread_count, pass.work, [&](Context& context) {
          layer_->forward(inputs, run, pass.saved, outputs, context);
        });
        pass.arrays = std::move(call.arrays);
        pass.captured = std::move(call.captured);
        pass.rows = extras.rows();
        nb::object results = extras.with(pass.out);
        if (run.mode == Mode::kTrain) last_run_ = run;
        return results;
      });
    });
  }

  // `from` is (dout, dlse, dweights). Returns (dq, dk, dv, dbias, dcaptured, parameters), or, for
  // SelfAttention, (dx, dcaptured, parameters).
  nb::object backward(const nb::tuple& from, nb::handle threads) {
    return as_method(backward_, [&] {
      const std::shared_ptr<Pass> pass = passes_.last();
      const char* const function = backward_.name.c_str();
      if (!pass) throw_value_error({function, "forward"}, "must have been called before it");
      if (nb::len(from) != 3)
        throw nb::type_error(
            "qkv: the package and its extension are of different versions (gradients)");
      const int thread_count = threads_of(function, threads);
      const Array dout = array_of(nb::object(from[0]), {function, "dout"});
      const Array dlse = array_of(nb::object(from[1]), {function, "dlse"});
      const Array dweights = array_of(nb::object(from[2]), {function, "dweights"});
      OutputGradients given{dout.view, dlse.view, dweights.view};
      if (dweights.view.given()) given.weights.rows = pass->rows.view;
      const Tensor zero = needed_zero(*pass, given);
      if (zero.given()) given.out = zero;

      const auto gradients = std::make_shared<typename L::Parameters>(layer_->zero_gradients());
      InputGradientsOf to;
      const ResultMaker maker(pass->like);
      const std::vector<nb::object> made = input_gradients(*pass, maker, to);
      const nb::object captured =
          captured_gradients(pass->captured, to.captured,
                             [&](const std::string& /*name*/, const ConstView& source, View& view) {
                               return maker.make(source.dtype(), source.shape(), view);
                             });
      run_call(thread_count, 3 * pass->work, [&](Context& context) {
        layer_->backward(pass->saved, given, to, *gradients, context);
      });
      nb::list results;
      for (const nb::object& gradient : made) results.append(maker.finish(gradient));
      finish_all(captured, [&](const nb::object& gradient) { return maker.finish(gradient); });
      results.append(captured);
      results.append(arrays_of(parameter_list(*gradients), gradients));
      return nb::object(nb::tuple(results));
    });
  }

  double dropout() const { return dropout_; }

  const HeldLayer<L>& held() const { return layer_; }

  // (seed, step) of the next training step; None until a step or set_run() sets them.
  nb::object run() const {
    if (!last_run_) return nb::none();
    return nb::make_tuple(last_run_->seed, last_run_->step);
  }
  void set_run(nb::handle run) {
    if (run.is_none()) {
      last_run_.reset();
      return;
    }
    const auto [seed, step] = nb::cast<std::pair<std::uint64_t, std::uint64_t>>(run);
    last_run_ = RunState{Mode::kTrain, seed, step};
  }

 private:
  using InputGradientsOf =
      std::conditional_t<kSelf, SelfAttentionInputGradients, LayerInputGradients>;

  // A forward pass: the state that backward() needs, and the arrays that own its memory.
  struct Pass {
    typename L::Saved saved;
    std::vector<Array> arrays;
    std::vector<std::shared_ptr<const CapturedInput>> captured;  // the arrays of score_mod
    Array rows;       // the queries whose weights were requested; absent for all
    nb::object like;  // results have the type of this array
    nb::object out;
    Dims out_shape;
    double work = 0;

    void release() {
      arrays.clear();
      captured.clear();
      rows = {};
      like.reset();
      out.reset();
    }
  };

  static auto layer_inputs(const CallArguments& call) {
    const std::vector<Mask>& masks = call.options.masks;
    if constexpr (kSelf) {
      // Tq is Tk, so that the diagonal is the same from either corner.
      return SelfAttentionInputs{call.inputs.q, {}, masks, call.options.mods};
    } else {
      return LayerInputs{call.inputs.q,     call.inputs.k,         call.inputs.v,    {}, masks,
                         call.options.bias, call.options.diagonal, call.options.mods};
    }
  }

  // The shapes of the results. For inputs that give no shapes, calls the layer, which throws Error.
  template <class LayerInputsOf>
  LayerShapes shapes_or_refusal(const Inputs& inputs, const LayerInputsOf& layer_inputs,
                                RunState& run, Pass& pass) const {
    const auto shapes = layer_shapes(inputs);
    if (shapes) return *shapes;
    layer_->forward(layer_inputs, run, pass.saved, {});
    throw std::logic_error("qkv: " + forward_.name + " knows no shapes for what it accepts");
  }

  std::optional<LayerShapes> layer_shapes(const Inputs& inputs) const {
    if constexpr (requires { shapes_of(*layer_, inputs); }) {
      return shapes_of(*layer_, inputs);
    } else {
      return shapes_of(inputs);
    }
  }

  double work(const Inputs& inputs, const View& out) const {
    double pair = 0;
    if constexpr (requires { pair_work(*layer_); }) {
      pair = pair_work(*layer_);
    } else {
      pair = pair_work(inputs);
    }
    const auto rows = static_cast<double>(out.element_count()) /
                      static_cast<double>(std::max<Index>(1, out.size(-1)));
    const ConstView& keys = kSelf ? inputs.q : inputs.k;
    const auto projections = static_cast<double>(parameter_count(*layer_));
    const auto key_rows = static_cast<double>(keys.element_count()) /
                          static_cast<double>(std::max<Index>(1, keys.size(-1)));
    return rows * static_cast<double>(keys.size(-2)) * pair + (rows + key_rows) * projections;
  }

  // Zeros in place of an absent gradient of out, if the layer needs that gradient; else nothing.
  Tensor needed_zero(const Pass& pass, const OutputGradients& given) const {
    if constexpr (std::is_same_v<L, MultiHeadAttention>) {
      if (given.out.given()) return {};
      if (!given.lse.given() && !given.weights.matrix.given()) {
        throw Error(backward_.name, "output_gradients",
                    "name no gradient, so there is nothing to compute");
      }
      return {pass.saved.inputs.q.dtype(), pass.out_shape};
    }
    return {};
  }

  // Makes arrays for the gradients of a pass's inputs and sets their views in `to`.
  static std::vector<nb::object> input_gradients(const Pass& pass, const ResultMaker& maker,
                                                 InputGradientsOf& to) {
    std::vector<nb::object> made;
    const auto add = [&](const ConstView& source, View& view) {
      made.push_back(source.given() ? maker.make(source.dtype(), source.shape(), view)
                                    : nb::none());
    };
    const auto& inputs = pass.saved.inputs;
    if constexpr (kSelf) {
      add(inputs.x, to.x);
    } else {
      add(inputs.q, to.q);
      add(inputs.k, to.k);
      add(inputs.v, to.v);
      add(inputs.bias, to.bias);
    }
    return made;
  }

  Method forward_;
  Method backward_;
  HeldLayer<L> layer_;
  double dropout_;
  std::optional<RunState> last_run_;
  Passes<Pass> passes_;
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_BOUND_LAYER_H_
