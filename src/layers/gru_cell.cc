// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>

#include <qkv/error.h>
#include <qkv/layers/gru.h>

#include "core/integers.h"
#include "core/message.h"
#include "core/storage.h"
#include "layers/checks.h"
#include "layers/gru_loops.h"
#include "layers/gru_parameters.h"
#include "layers/gru_sequence.h"

namespace qkv {
namespace {

using layers::GruLoops;
using layers::GruWeights;
using layers::kGruRows;
using layers::row_of;
using layers::RowsOf;
using runtime::Arena;
using runtime::Call;

// Checks that an array has this dtype, this shape and contiguous channels.
void check_rows(std::string_view function, const layers::NamedView& array, DType dtype,
                const Dims& shape) {
  layers::check_same(function, array, dtype, shape);
  if (array.view.size(1) > 1 && array.view.stride(1) != 1) {
    throw Error(
        function, array.name,
        core::text("must have contiguous channels, got a stride of ", array.view.stride(1)));
  }
}

template <class T, class AnyView>
RowsOf<T> rows_of(const AnyView& view, Index first) {
  if (!view.given()) return {};
  return {view.template as<std::remove_const_t<T>>() + first * view.stride(0), view.stride(0)};
}

// Calls f(first, rows, arena) for each block: `rows` rows from `first` on, at most kGruRows.
template <class F>
void for_each_row_block(Call& call, Index rows, const F& f) {
  call.for_each_task(core::divide_up(rows, kGruRows), [&](Index task, Arena& arena) {
    const Index first = task * kGruRows;
    f(first, std::min(kGruRows, rows - first), arena);
  });
}

}  // namespace

GruCell::GruCell(Index input, Index hidden, bool bias, DType dtype)
    : parameters_(layers::gru_parameters("GruCell", {input, hidden, false, bias, dtype}, "")) {}

GruCell::Parameters GruCell::zero_gradients() const { return layers::zeros_like(parameters_); }

struct GruCell::Steps::State {
  // The prepacked weights that several Steps share.
  struct Packed {
    Tensor ih;
    Tensor hh;
    Tensor ih_transposed{};  // for gradients, packed when first needed
    Tensor hh_transposed{};
    std::once_flag transposed{};
  };

  const GruCell& cell;
  Context& context;
  std::shared_ptr<Packed> packed;

  DType dtype() const { return cell.parameters_.weight_ih.dtype(); }
  Index input() const { return cell.parameters_.weight_ih.size(1); }
  Index hidden() const { return cell.parameters_.weight_hh.size(1); }
  template <class T>
  GruWeights<T> weights() const {
    GruWeights<T> w(cell.parameters_);
    w.ih = {3 * w.hidden, w.input, packed->ih.values<T>().data()};
    w.hh = {3 * w.hidden, w.hidden, packed->hh.values<T>().data()};
    return w;
  }
  // Returns the weights with transposed panels, for gradients; the other panels stay absent.
  template <class T>
  GruWeights<T> transposed(Call& call) const {
    GruWeights<T> w(cell.parameters_);
    Packed& p = *packed;
    std::call_once(p.transposed, [&] {
      p.ih_transposed = Tensor(dtype(), {w.ih_transposed_size()});
      p.hh_transposed = Tensor(dtype(), {w.hh_transposed_size()});
      layers::pack_transposed(call, cell.parameters_.weight_ih, p.ih_transposed.values<T>().data());
      layers::pack_transposed(call, cell.parameters_.weight_hh, p.hh_transposed.values<T>().data());
    });
    w.ih_transposed = {w.input, 3 * w.hidden, p.ih_transposed.values<T>().data()};
    w.hh_transposed = {w.hidden, 3 * w.hidden, p.hh_transposed.values<T>().data()};
    return w;
  }
};

GruCell::Steps::Steps(const GruCell& cell, Context& context) {
  constexpr std::string_view kFunction = "GruCell::Steps";
  const GruParameters& p = cell.parameters();
  core::dispatch(p.weight_ih.dtype(), [&]<class T>() {
    state_ = std::make_unique<State>(State{cell, context, std::make_shared<State::Packed>()});
    layers::pack_gru<T>(kFunction, p, state_->packed->ih, state_->packed->hh, context);
  });
}
GruCell::Steps::Steps(const Steps& steps, Context& context)
    : state_(std::make_unique<State>(State{steps.state_->cell, context, steps.state_->packed})) {}
GruCell::Steps::~Steps() = default;
GruCell::Steps::Steps(Steps&&) noexcept = default;
GruCell::Steps& GruCell::Steps::operator=(Steps&&) noexcept = default;

void GruCell::Steps::forward(const ConstView& x, const ConstView& h, const View& next,
                             const View& gates) const {
  constexpr std::string_view kFunction = "GruCell::Steps::forward";
  const Index B = x.given() && x.rank() > 0 ? x.size(0) : 0;
  const Index H = state_->hidden();
  check_rows(kFunction, {"x", x}, state_->dtype(), {B, state_->input()});
  check_rows(kFunction, {"h", h}, state_->dtype(), {B, H});
  check_rows(kFunction, {"next", next}, state_->dtype(), {B, H});
  layers::check_apart(kFunction, {"next", next}, {{"x", x}, {"h", h}});
  if (gates.given()) {
    check_rows(kFunction, {"gates", gates}, state_->dtype(), {B, 4 * H});
    layers::check_apart(kFunction, {"gates", gates}, {{"x", x}, {"h", h}, {"next", next}});
  }
  core::dispatch(state_->dtype(), [&]<class T>() {
    const GruWeights<T> w = state_->weights<T>();
    Context& context = state_->context;
    Call call(context, kFunction, 0, 2 * Arena::cost<T>(kGruRows * 3 * H));
    const GruLoops<T> loops{layers::kernels_in_use<T>(context, kFunction),
                            layers::gru_kernels_in_use<T>(context, kFunction), call.stop_point()};
    for_each_row_block(call, B, [&](Index first, Index rows, Arena& arena) {
      const RowsOf<T> xs{arena.take<T>(rows * 3 * H).data(), 3 * H};
      const RowsOf<T> hs{arena.take<T>(rows * 3 * H).data(), 3 * H};
      const auto h_rows = rows_of<const T>(h, first);
      const auto next_rows = rows_of<T>(next, first);
      const auto gate_rows = rows_of<T>(gates, first);
      loops.project_input(w, rows_of<const T>(x, first), rows, xs);
      loops.project_state(w, h_rows, rows, hs);
      for (Index r = 0; r < rows; ++r) {
        loops.gates_by.forward(row_of(xs, r), row_of(hs, r), row_of(h_rows, r), H,
                               row_of(next_rows, r), row_of(gate_rows, r));
      }
    });
  });
}

void GruCell::Steps::backward(const ConstView& gates, const ConstView& h, const ConstView& dnext,
                              const View& dx, const View& dh, const View& dgates) const {
  constexpr std::string_view kFunction = "GruCell::Steps::backward";
  const Index B = h.given() && h.rank() > 0 ? h.size(0) : 0;
  const Index H = state_->hidden();
  const Index I = state_->input();
  check_rows(kFunction, {"h", h}, state_->dtype(), {B, H});
  check_rows(kFunction, {"gates", gates}, state_->dtype(), {B, 4 * H});
  check_rows(kFunction, {"dnext", dnext}, state_->dtype(), {B, H});
  check_rows(kFunction, {"dh", dh}, state_->dtype(), {B, H});
  check_rows(kFunction, {"dgates", dgates}, state_->dtype(), {B, 4 * H});
  const layers::NamedView inputs[] = {{"gates", gates}, {"h", h}, {"dnext", dnext}};
  layers::check_apart(kFunction, {"dh", dh}, {inputs[0], inputs[1], inputs[2]});
  layers::check_apart(kFunction, {"dgates", dgates}, {inputs[0], inputs[1], inputs[2], {"dh", dh}});
  if (dx.given()) {
    check_rows(kFunction, {"dx", dx}, state_->dtype(), {B, I});
    layers::check_apart(kFunction, {"dx", dx},
                        {inputs[0], inputs[1], inputs[2], {"dh", dh}, {"dgates", dgates}});
  }
  core::dispatch(state_->dtype(), [&]<class T>() {
    Context& context = state_->context;
    Call call(context, kFunction, 0, 0);
    const GruWeights<T> w = state_->transposed<T>(call);
    const GruLoops<T> loops{layers::kernels_in_use<T>(context, kFunction),
                            layers::gru_kernels_in_use<T>(context, kFunction), call.stop_point()};
    for_each_row_block(call, B, [&](Index first, Index rows, Arena&) {
      const auto gate_rows = rows_of<const T>(gates, first);
      const auto h_rows = rows_of<const T>(h, first);
      const auto dnext_rows = rows_of<const T>(dnext, first);
      const auto dh_rows = rows_of<T>(dh, first);
      const auto dgate_rows = rows_of<T>(dgates, first);
      for (Index r = 0; r < rows; ++r) {
        loops.gates_by.backward(row_of(gate_rows, r), row_of(h_rows, r), row_of(dnext_rows, r), H,
                                row_of(dgate_rows, r), row_of(dh_rows, r));
      }
      loops.add_state_gradient(w, {dgate_rows.data, dgate_rows.stride}, rows, dh_rows);
      if (!dx.given()) return;
      const auto dx_rows = rows_of<T>(dx, first);
      for (Index r = 0; r < rows; ++r) std::fill_n(row_of(dx_rows, r), I, T(0));
      loops.add_input_gradient(w, {dgate_rows.data, dgate_rows.stride}, rows, dx_rows);
    });
  });
}

void GruCell::parameter_gradients(const ConstView& x, const ConstView& h, const ConstView& dgates,
                                  Parameters& gradients, Write write, Context& context) const {
  constexpr std::string_view kFunction = "GruCell::parameter_gradients";
  const Index N = x.given() && x.rank() > 0 ? x.size(0) : 0;
  const DType dtype = parameters_.weight_ih.dtype();
  const Index H = parameters_.weight_hh.size(1);
  layers::check_same(kFunction, {"x", x}, dtype, {N, parameters_.weight_ih.size(1)});
  layers::check_same(kFunction, {"h", h}, dtype, {N, H});
  layers::check_same(kFunction, {"dgates", dgates}, dtype, {N, 4 * H});
  layers::check_gradients(kFunction, gradients, parameters_);
  layers::gru_parameter_gradients(kFunction, x, h, dgates, gradients, write, context);
}

}  // namespace qkv
