// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include <qkv/layers/dropout.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "errors.h"
#include "layer_call.h"
#include "layer_pass.h"

namespace qkv::python {
namespace {

const Method kDropoutForward{"Dropout.forward", MethodArrays::kX};
const Method kDropoutBackward{"Dropout.backward", MethodArrays::kX};

class BoundDropout {
 public:
  explicit BoundDropout(nb::handle dropout) : layer_(number_of(dropout, {"Dropout", "dropout"})) {}

  nb::object forward(nb::handle x, const nb::tuple& mode) {
    return as_method(kDropoutForward, [&] {
      return passes_.run([&](Pass& pass) {
        pass.array = array_of(x, {kDropoutForward.name.c_str(), "x", kLayerReals});
        pass.like = nb::borrow(x);
        const ConstView& from = pass.array.view;
        if (!from.given())
          throw_value_error({kDropoutForward.name.c_str(), "x"}, "must be given, got None");
        RunState run = run_of(kDropoutForward, mode, last_run_, layer_.dropout());
        const ResultMaker maker(x);
        View out;
        const nb::object made = maker.make(from.dtype(), from.shape(), out);
        // pass.saved gets no mask, but what backward() needs to repeat the draw.
        run_call(1, count_of(from), [&](Context&) { layer_.forward(from, run, pass.saved, out); });
        if (run.mode == Mode::kTrain) last_run_ = run;
        return maker.finish(made);
      });
    });
  }

  nb::object backward(nb::handle dout) {
    return as_method(kDropoutBackward, [&] {
      const auto pass = last_pass(passes_, kDropoutBackward.name.c_str());
      const Array from = array_of(dout, {kDropoutBackward.name.c_str(), "dout", kLayerReals});
      const ResultMaker maker(pass->like);
      View dx;
      const nb::object made = maker.make(pass->saved.dtype, pass->saved.shape, dx);
      run_call(1, 0, [&](Context&) { layer_.backward(pass->saved, from.view, dx); });
      return maker.finish(made);
    });
  }

  // (seed, step) of the next training step; None until a step or set_run() sets them.
  nb::object run() const {
    if (!last_run_) return nb::none();
    return nb::make_tuple(last_run_->seed, last_run_->step);
  }
  void set_run(nb::handle run) {
    const auto [seed, step] = nb::cast<std::pair<std::uint64_t, std::uint64_t>>(run);
    last_run_ = RunState{Mode::kTrain, seed, step};
  }

 private:
  using Pass = LayerPass<DropoutLayer>;
  DropoutLayer layer_;
  std::optional<RunState> last_run_;
  Passes<Pass> passes_;
};

}  // namespace

void bind_dropout(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  nb::class_<BoundDropout>(module, "Dropout")
      .def(
          "__init__",
          [](BoundDropout* self, nb::handle dropout) {
            try {
              new (self) BoundDropout(dropout);
            } catch (const Error& error) {
              throw with_names(error, "Dropout", {});
            }
          },
          any())
      .def("forward", &BoundDropout::forward, any(), nb::arg())
      .def("backward", &BoundDropout::backward, any())
      .def("parameters", [](const BoundDropout&) { return nb::dict(); })
      .def("assign", [](BoundDropout&, const char*, const nb::dict&) {})  // no parameters to assign
      .def(
          "initialise",
          [](BoundDropout&, const char* function, nb::handle seed) {
            seed_of(seed, {function, "seed"});
          },
          nb::arg(), nb::arg().none())
      .def("run", &BoundDropout::run)
      .def("set_run", &BoundDropout::set_run);
}

}  // namespace qkv::python
