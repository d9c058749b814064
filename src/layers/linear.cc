// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include <qkv/layers/linear.h>

#include "core/message.h"
#include "core/shapes.h"
#include "core/storage.h"
#include "layers/checks.h"
#include "layers/gradients.h"
#include "layers/linear_products.h"
#include "layers/packed.h"

namespace qkv {
namespace {

using layers::LinearPair;

constexpr std::string_view kLinear = "Linear";
constexpr std::string_view kLinearForward = "Linear::forward";
constexpr std::string_view kLinearBackward = "Linear::backward";

// Returns `shape` with the last size replaced by `channels`.
Dims with_channels(const Dims& shape, Index channels) {
  Dims result = shape;
  result[result.rank() - 1] = channels;
  return result;
}

void check_forward(std::string_view function, const LinearPair& p, const ConstView& x,
                   const View& y) {
  const Tensor& w = p.weight;
  layers::check_rows(function, {"x", x}, w.dtype(), w.size(1));
  layers::check_same(function, {"y", y}, w.dtype(), with_channels(x.shape(), w.size(0)));
  layers::check_apart(function, {"y", y}, {{"x", x}, {"weight", w}, {"bias", p.bias}});
}

void check_input_gradient(std::string_view function, const LinearPair& p, const ConstView& dy,
                          const View& dx) {
  const Tensor& w = p.weight;
  layers::check_same(function, {"dx", dx}, w.dtype(), with_channels(dy.shape(), w.size(1)));
  layers::check_apart(function, {"dx", dx}, {{"dy", dy}, {"weight", w}});
}

// The arguments of a backward pass: the arrays that it reads, and the arrays for its results.
struct LinearBackward {
  std::string_view function;
  LinearPair p;
  layers::NamedView x;
  ConstView dy;
  View dx;
  layers::LinearGradientViews gradients;
};

void check_backward(const LinearBackward& b) {
  const Tensor& w = b.p.weight;
  layers::check_rows(b.function, b.x, w.dtype(), w.size(1));
  layers::check_same(b.function, {"dy", b.dy}, w.dtype(),
                     with_channels(b.x.view.shape(), w.size(0)));
  layers::check_gradient(b.function, "gradients.weight", b.gradients.weight, w);
  layers::check_gradient(b.function, "gradients.bias", b.gradients.bias, b.p.bias);
  if (b.dx.given()) {
    check_input_gradient(b.function, b.p, b.dy, b.dx);
    layers::check_apart(b.function, {"dx", b.dx},
                        {{"x", b.x.view},
                         {"gradients.weight", b.gradients.weight},
                         {"gradients.bias", b.gradients.bias}});
  }
  const auto check_gradient_apart = [&](const char* name, const ConstView& gradient) {
    if (gradient.given()) {
      layers::check_apart(b.function, {name, gradient}, {{"x", b.x.view}, {"dy", b.dy}});
    }
  };
  check_gradient_apart("gradients.weight", b.gradients.weight);
  check_gradient_apart("gradients.bias", b.gradients.bias);
}

// Checks all arguments, and computes the gradients of the parameters, but not dx.
void compute_backward(const LinearBackward& b, Write write, Context& context) {
  check_backward(b);
  layers::linear_backward_parameters(b.function, b.x.view, b.dy, b.gradients, write, context);
}

}  // namespace

Linear::Linear(Index in, Index out, bool bias, DType dtype) {
  layers::check_dtype(kLinear, dtype);
  layers::check_size(kLinear, "in", in);
  layers::check_size(kLinear, "out", out);
  layers::check_tensor(kLinear, "in or out", dtype, {out, in});
  parameters_ = {Tensor(dtype, {out, in}), bias ? Tensor(dtype, {out}) : Tensor()};
}

Linear::Parameters Linear::zero_gradients() const {
  return {layers::zeros_like(parameters_.weight), layers::zeros_like(parameters_.bias)};
}

void Linear::forward(const ConstView& x, Saved& saved, const View& y, Context& context) const {
  saved.x = {};  // backward() refuses `saved` if this call throws
  check_forward(kLinearForward, parameters_, x, y);
  layers::linear_forward(kLinearForward, x, parameters_, y, context);
  saved.x = x;
}

void Linear::backward(const Saved& saved, const ConstView& dy, const View& dx,
                      Parameters& gradients, Write write, Context& context) const {
  if (!saved.x.given()) throw Error(kLinearBackward, "saved", "must come from a forward pass");
  compute_backward({kLinearBackward,
                    parameters_,
                    {"saved.x", saved.x},
                    dy,
                    dx,
                    {gradients.weight, gradients.bias}},
                   write, context);
  if (dx.given()) {
    layers::linear_backward_input(kLinearBackward, dy, parameters_, dx, write, context);
  }
}

// ---- packed ---------------------------------------------------------------------------------

struct PackedLinear::State {
  // The prepacked weights that several packed layers share.
  struct Panels {
    Tensor forward;
    Tensor backward;  // packed when first needed
    std::once_flag packed_backward;
  };

  LinearPair parameters;
  Context& context;
  std::shared_ptr<Panels> panels;

  const Tensor& backward_panels(std::string_view function) const {
    std::call_once(panels->packed_backward, [&] {
      layers::pack_backward(function, parameters.weight, panels->backward, context);
    });
    return panels->backward;
  }
};

PackedLinear::PackedLinear(const LinearParameters& parameters, Context& context)
    : PackedLinear(parameters.weight, parameters.bias, context) {}

PackedLinear::PackedLinear(const Tensor& weight, const Tensor& bias, Context& context) {
  constexpr std::string_view kFunction = "PackedLinear";
  const Tensor& w = weight;
  layers::check_float(kFunction, {"parameters.weight", w});
  if (w.rank() != 2) {
    throw Error(kFunction, "parameters.weight",
                core::text("must have the shape [out,in], got ", describe(w)));
  }
  const Index outputs = w.size(0);
  if (bias.given()) {
    layers::check_same(kFunction, {"parameters.bias", bias}, w.dtype(), {outputs});
  }
  const Index inputs = w.size(1);
  Tensor panels(w.dtype(), {dense::Panels<float>::size(outputs, inputs)});
  core::dispatch(w.dtype(), [&]<class T>() {
    runtime::Call call(context, kFunction, 0, 0);
    layers::pack(call, layers::kernels_in_use<T>(context, kFunction), w, panels.values<T>().data());
  });
  state_ =
      std::make_unique<State>(State{{weight, bias}, context, std::make_shared<State::Panels>()});
  state_->panels->forward = std::move(panels);
}
PackedLinear::PackedLinear(const PackedLinear& packed, Context& context)
    : state_(std::make_unique<State>(
          State{packed.state_->parameters, context, packed.state_->panels})) {}
PackedLinear::~PackedLinear() = default;
PackedLinear::PackedLinear(PackedLinear&&) noexcept = default;
PackedLinear& PackedLinear::operator=(PackedLinear&&) noexcept = default;

void PackedLinear::forward(const ConstView& x, const View& y) const {
  constexpr std::string_view kFunction = "PackedLinear::forward";
  check_forward(kFunction, state_->parameters, x, y);
  layers::packed_forward(kFunction, x, state_->parameters, state_->panels->forward, y,
                         state_->context);
}

void PackedLinear::backward_input(const ConstView& dy, const View& dx, Write write) const {
  constexpr std::string_view kFunction = "PackedLinear::backward_input";
  const Tensor& w = state_->parameters.weight;
  layers::check_rows(kFunction, {"dy", dy}, w.dtype(), w.size(0));
  check_input_gradient(kFunction, state_->parameters, dy, dx);
  layers::packed_backward_input(kFunction, dy, state_->backward_panels(kFunction), dx, write,
                                state_->context);
}

void PackedLinear::backward(const ConstView& x, const ConstView& dy, const View& dx,
                            Tensor& d_weight, Tensor& d_bias, Write write) const {
  constexpr std::string_view kFunction = "PackedLinear::backward";
  compute_backward({kFunction, state_->parameters, {"x", x}, dy, dx, {d_weight, d_bias}}, write,
                   state_->context);
  if (!dx.given()) return;
  layers::packed_backward_input(kFunction, dy, state_->backward_panels(kFunction), dx, write,
                                state_->context);
}

}  // namespace qkv
