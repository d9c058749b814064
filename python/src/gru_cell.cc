// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include <nanobind/stl/shared_ptr.h>

#include <qkv/layers/gru.h>
#include <qkv/tensor.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "errors.h"
#include "held_layer.h"
#include "layer_call.h"
#include "results.h"

namespace qkv::python {
namespace {

constexpr const char* kGruCell = "GRUCell";
const Method kCellForward{"GRUCell.forward", MethodArrays::kX};
const Method kCellBackward{"GRUCell.backward", MethodArrays::kX};

// One step as its backward pass needs it: copies of x and of the state before the step, and the
// gates.
struct Step {
  Tensor x, state, gates;
  nb::object like;    // gradients have the type of this array
  bool batch = true;  // false if x has no batch axis
};

// x as [B,N], where x may also be [N].
ConstView as_rows(const ConstView& x) {
  if (x.rank() != 1) return x;
  return {x.data(), x.dtype(), Dims(1, x.size(0)), Dims(0, x.stride(0))};
}

class BoundGruCell {
 public:
  explicit BoundGruCell(GruCell cell) : layer_(std::move(cell)) {}
  const HeldLayer<GruCell>& held() const { return layer_; }

  // Returns (state, step).
  nb::tuple forward(nb::handle x, nb::handle state, nb::handle threads) {
    return as_method(kCellForward, [&] {
      const char* const function = kCellForward.name.c_str();
      const Array input = array_of(x, {function, "x", kLayerReals});
      const Array before = array_of(state, {function, "state", kLayerReals});
      const GruParameters& p = layer_->parameters();
      const DType dtype = p.weight_ih.dtype();
      const Index width = p.weight_ih.size(1), hidden = p.weight_hh.size(1);
      const ConstView rows = checked(input.view, {function, "x"}, width);
      const Index B = rows.size(0);
      auto step = std::make_shared<Step>();
      step->batch = input.view.rank() != 1;
      step->like = nb::borrow(x);
      step->x = contiguous(rows);
      step->state = before.view.given()
                        ? contiguous(checked(before.view, {function, "state"}, hidden))
                        : Tensor(dtype, {B, hidden});
      if (step->state.size(0) != B ||
          (before.view.given() && before.view.rank() != input.view.rank())) {
        throw_value_error({function, "state"}, "must have the leading axis of x, got " +
                                                   qkv::describe(before.view) + " with x " +
                                                   qkv::describe(input.view));
      }
      step->gates = Tensor(dtype, {B, 4 * hidden});
      const ResultMaker maker(x);
      View next;
      const nb::object made = maker.make(dtype, step->batch ? Dims(B, hidden) : Dims(hidden), next);
      const View next_rows = step->batch ? next : reshape(next, Dims(1, hidden));
      const double work = static_cast<double>(B) * static_cast<double>(parameter_count(*layer_));
      run_call(threads_of(function, threads), work, [&](Context& context) {
        GruCell::Steps(*layer_, context)
            .forward(step->x, step->state, next_rows, step->gates.view());
      });
      return nb::make_tuple(maker.finish(made), nb::cast(step));
    });
  }

  // Returns (dx, dstate, parameters).
  nb::tuple backward(nb::handle dstate, const std::shared_ptr<Step>& step, nb::handle threads) {
    return as_method(kCellBackward, [&] {
      const char* const function = kCellBackward.name.c_str();
      const Array given = array_of(dstate, {function, "dstate", kLayerReals});
      const GruParameters& p = layer_->parameters();
      const Index width = p.weight_ih.size(1), hidden = p.weight_hh.size(1);
      if (step->x.dtype() != p.weight_ih.dtype() || step->x.size(1) != width ||
          step->state.size(1) != hidden) {
        throw_value_error({function, "step"}, "must come from a forward pass of this layer");
      }
      const ConstView rows = checked(given.view, {function, "dstate"}, hidden);
      const Index B = step->x.size(0);
      if (rows.size(0) != B || (given.view.rank() == 1) == step->batch) {
        throw_value_error({function, "dstate"},
                          "must have the shape of the state, got " + qkv::describe(given.view));
      }
      const Tensor dnext = contiguous(rows);
      const ResultMaker maker(step->like);
      const auto make = [&](Index columns, View& view) {
        nb::object made =
            maker.make(dnext.dtype(), step->batch ? Dims(B, columns) : Dims(columns), view);
        if (!step->batch) view = reshape(view, Dims(1, columns));
        return made;
      };
      View dx, dh;
      const nb::object of_x = make(width, dx), of_state = make(hidden, dh);
      const auto gradients = std::make_shared<GruParameters>(layer_->zero_gradients());
      const double work =
          2 * static_cast<double>(B) * static_cast<double>(parameter_count(*layer_));
      run_call(threads_of(function, threads), work, [&](Context& context) {
        Tensor dgates(dnext.dtype(), {B, 4 * hidden});
        GruCell::Steps(*layer_, context)
            .backward(step->gates, step->state, dnext, dx, dh, dgates.view());
        layer_->parameter_gradients(step->x, step->state, dgates, *gradients, Write::kOverwrite,
                                    context);
      });
      return nb::make_tuple(maker.finish(of_x), maker.finish(of_state),
                            arrays_of(parameter_list(*gradients), gradients));
    });
  }

 private:
  // Checks that x is [B,width] or [width], of the layer's dtype; returns it as [B,width].
  ConstView checked(const ConstView& x, const Name& name, Index width) const {
    const DType dtype = layer_->parameters().weight_ih.dtype();
    if (!x.given()) throw_value_error(name, "must be given, got None");
    if (x.rank() < 1 || x.rank() > 2 || x.size(-1) != width) {
      throw_value_error(name, "must have the shape [B," + std::to_string(width) + "] or [" +
                                  std::to_string(width) + "], got " + qkv::describe(x));
    }
    if (x.dtype() != dtype) {
      throw_type_error(name, "must be " + std::string(name_of(dtype)) + " as the layer is, got " +
                                 qkv::describe(x));
    }
    return as_rows(x);
  }

  HeldLayer<GruCell> layer_;
};

void make_gru_cell(BoundGruCell* self, nb::handle input, nb::handle hidden, nb::handle bias,
                   nb::handle dtype) {
  const Index width = index_of(input, {kGruCell, "input_size"});
  const Index channels = index_of(hidden, {kGruCell, "hidden_size"});
  try {
    new (self) BoundGruCell(
        GruCell(width, channels, flag_of(bias, {kGruCell, "bias"}), layer_dtype(kGruCell, dtype)));
  } catch (const Error& error) {
    throw with_names(error, kGruCell,
                     {{"input", "input_size"},
                      {"hidden", "hidden_size"},
                      {"input or hidden", "input_size or hidden_size"}});
  }
}

}  // namespace

void bind_gru_cell(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  [[maybe_unused]] const nb::class_<Step> step(module, "GRUCellStep");
  nb::class_<BoundGruCell> cell(module, kGruCell);
  cell.def("__init__", make_gru_cell, any(), any(), any(), any())
      .def("forward", &BoundGruCell::forward, any(), any(), any())
      .def("backward", &BoundGruCell::backward, any(), nb::arg(), any());
  bind_parameters(cell);
}

}  // namespace qkv::python
