// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <qkv/layers/self_attention.h>

#include "core/shapes.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/gradients.h"
#include "layers/projection.h"

namespace qkv {
namespace {

using layers::project;
using layers::project_backward;

constexpr std::string_view kSelfAttentionForward = "SelfAttention::forward";
constexpr std::string_view kSelfAttentionBackward = "SelfAttention::backward";

Options options_of(const SelfAttentionInputs& inputs) {
  Options options = layers::options_of(Dot{}, inputs.lengths, inputs.masks, {});
  options.mods = inputs.mods;
  return options;
}

// Returns the divisor of q and k, the fourth root of the width: it divides q . k by sqrt(width).
double divisor_of(Index width) { return std::sqrt(std::sqrt(static_cast<double>(width))); }

}  // namespace

SelfAttention::SelfAttention(Index width, DType dtype) {
  layers::check_dtype("SelfAttention", dtype);
  layers::check_size("SelfAttention", "width", width);
  layers::check_tensor("SelfAttention", "width", dtype, {width, width});
  for (LinearParameters* p : {&parameters_.q, &parameters_.k, &parameters_.v}) {
    p->weight = Tensor(dtype, {width, width});
  }
}

SelfAttention::Parameters SelfAttention::zero_gradients() const {
  return std::move(SelfAttention(width(), parameters_.q.weight.dtype()).parameters_);
}

void SelfAttention::forward(const SelfAttentionInputs& inputs, RunState& run, Saved& saved,
                            const Outputs& outputs, Context& context) const {
  saved.out = {};  // backward() refuses `saved` if this call throws
  const ConstView x = inputs.x;
  const DType dtype = parameters_.q.weight.dtype();
  layers::check_rows(kSelfAttentionForward, {"x", x}, dtype, width());
  layers::check_same(kSelfAttentionForward, {"out", outputs.out}, dtype, x.shape());
  layers::check_outputs(kSelfAttentionForward, outputs, {{"x", x}});

  const double divisor = divisor_of(width());
  project(kSelfAttentionForward, x, parameters_.q, divisor, saved.q, context);
  project(kSelfAttentionForward, x, parameters_.k, divisor, saved.k, context);
  project(kSelfAttentionForward, x, parameters_.v, 1, saved.v, context);
  layers::attend({saved.q, saved.k, saved.v}, options_of(inputs), outputs, saved.lse,
                 core::sub_dims(x.shape(), 0, x.rank() - 1), context);
  saved.inputs = inputs;
  saved.out = outputs.out;
  layers::advance(run);
}

void SelfAttention::backward(const Saved& saved, const OutputGradients& output_gradients,
                             const SelfAttentionInputGradients& input_gradients,
                             Parameters& gradients, Context& context) const {
  if (!saved.out.given())
    throw Error(kSelfAttentionBackward, "saved", "must come from a forward pass");
  const ConstView x = saved.inputs.x;
  if (x.dtype() != parameters_.q.weight.dtype() || x.size(-1) != width()) {
    throw Error(kSelfAttentionBackward, "saved", "must come from a forward pass of this layer");
  }
  layers::check_all_gradients(kSelfAttentionBackward, gradients, parameters_);
  if (input_gradients.x.given()) {
    const layers::NamedView dx{"input_gradients.x", input_gradients.x};
    layers::check_same(kSelfAttentionBackward, dx, x.dtype(), x.shape());
    layers::check_apart(kSelfAttentionBackward, dx,
                        {{"x", x}, {"output_gradients.out", output_gradients.out}});
  }

  Tensor dq(x.dtype(), x.shape());
  Tensor dk(x.dtype(), x.shape());
  Tensor dv(x.dtype(), x.shape());
  // Backward through attend():
  const layers::CapturedBuffers captured(input_gradients.captured, input_gradients.write);
  attention_backward({saved.q, saved.k, saved.v}, options_of(saved.inputs), {saved.out, saved.lse},
                     output_gradients, {.q = dq, .k = dk, .v = dv, .captured = captured.filled()},
                     context);
  captured.give();
  // Backward through the three project() calls: dx sums the gradients in the order q, k, v.
  const double divisor = divisor_of(width());
  const auto undo = [&](const LinearParameters& p, double divided_by, Tensor& dy,
                        LinearParameters& dp, Write write_x) {
    project_backward(kSelfAttentionBackward, x, p, divided_by, dy,
                     {input_gradients.x, write_x, dp, input_gradients.write}, context);
  };
  undo(parameters_.q, divisor, dq, gradients.q, input_gradients.write);
  undo(parameters_.k, divisor, dk, gradients.k, Write::kAccumulate);
  undo(parameters_.v, 1, dv, gradients.v, Write::kAccumulate);
}

}  // namespace qkv
