// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <utility>

#include <qkv/layers/multi_head.h>

#include "core/message.h"
#include "core/shapes.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/heads.h"
#include "layers/linear_products.h"
#include "layers/projection.h"

namespace qkv {
namespace {

using core::text;
using layers::project;
using layers::project_backward;
using layers::split_heads;

constexpr std::string_view kMultiHead = "MultiHeadAttention";
constexpr std::string_view kMultiHeadForward = "MultiHeadAttention::forward";
constexpr std::string_view kMultiHeadBackward = "MultiHeadAttention::backward";

LinearParameters linear_parameters(DType dtype, Index out, Index in, bool bias) {
  return {Tensor(dtype, {out, in}), bias ? Tensor(dtype, {out}) : Tensor()};
}

MultiHeadAttention::Parameters zeros(const MultiHeadConfig& c) {
  const bool split = c.form == HeadForm::kSplit;
  const Index inner = split ? c.width : c.heads * c.width;
  const bool bias = split && c.bias;
  const auto projection = [&] { return linear_parameters(c.dtype, inner, c.width, bias); };
  return {c.form, projection(), projection(), projection(),
          linear_parameters(c.dtype, c.width, inner, c.bias)};
}

// What q and k are divided by: the split form leaves scaling to the score.
double divisor_of(const MultiHeadConfig& c) {
  return c.form == HeadForm::kSplit ? 1 : std::pow(static_cast<double>(c.width), 0.25);
}

Options options_of(const MultiHeadConfig& c, const LayerInputs& inputs, const Dropout& dropout) {
  const Score score = c.form == HeadForm::kSplit ? Score{ScaledDot{}} : Score{Dot{}};
  return layers::options_of(score, inputs.lengths, inputs.masks, dropout);
}

// [..,Tq,width] where .. are the leading axes of q, k and v, broadcast.
Dims out_shape(const LayerInputs& inputs) {
  const auto leading = [](const ConstView& x) {
    return core::sub_dims(x.shape(), 0, x.rank() - 2);
  };
  if (inputs.k.size(-2) != inputs.v.size(-2)) {
    throw Error(kMultiHeadForward, "v",
                text("has Tk = ", inputs.v.size(-2), " but k has Tk = ", inputs.k.size(-2), " (",
                     core::shown("k", inputs.k), ", ", core::shown("v", inputs.v), ")"));
  }
  Dims batch = leading(inputs.q);
  for (const layers::NamedView& x : {layers::NamedView{"k", inputs.k}, {"v", inputs.v}}) {
    const auto both = core::broadcast_shapes(batch, leading(x.view));
    if (!both) {
      throw Error(kMultiHeadForward, x.name,
                  text("has leading axes that do not broadcast with those before it (",
                       core::shown("q", inputs.q), ", ", core::shown("k", inputs.k), ", ",
                       core::shown("v", inputs.v), ")"));
    }
    batch = *both;
  }
  batch.push_back(inputs.q.size(-2));
  batch.push_back(inputs.q.size(-1));
  return batch;
}

bool same_array(const View& a, const View& b) {
  return a.given() && b.given() && a.data() == b.data() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

// Shapes, types and overlaps of the gradients of q, k and v; two may be one buffer.
void check_gradients(const LayerInputs& inputs, const ConstView& dout,
                     const LayerInputGradients& d) {
  using Pair = std::pair<layers::NamedView, View>;
  const std::array<Pair, 3> all{
      Pair{{"q", inputs.q}, d.q}, {{"k", inputs.k}, d.k}, {{"v", inputs.v}, d.v}};
  constexpr std::array<std::string_view, 3> kNames{"input_gradients.q", "input_gradients.k",
                                                   "input_gradients.v"};
  for (std::size_t n = 0; n < all.size(); ++n) {
    const auto& [input, gradient] = all[n];
    if (!gradient.given()) continue;
    const layers::NamedView target{kNames[n], gradient};
    layers::check_same(kMultiHeadBackward, target, input.view.dtype(), input.view.shape());
    layers::check_apart(
        kMultiHeadBackward, target,
        {{"q", inputs.q}, {"k", inputs.k}, {"v", inputs.v}, {"output_gradients.out", dout}});
    for (std::size_t m = 0; m < n; ++m) {
      if (same_array(gradient, all[m].second)) continue;
      layers::check_apart(kMultiHeadBackward, target, {{kNames[m], all[m].second}});
    }
  }
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const MultiHeadConfig& config) : config_(config) {
  layers::check_dtype(kMultiHead, config.dtype);
  layers::check_size(kMultiHead, "width", config.width);
  layers::check_size(kMultiHead, "heads", config.heads);
  const bool split = config.form == HeadForm::kSplit;
  if (split && config.width % config.heads != 0) {
    throw Error(kMultiHead, "heads",
                text("must divide width in the split form, got ", config.heads, " heads for width ",
                     config.width));
  }
  config_.dropout = layers::checked_dropout(kMultiHead, config.dropout.value_or(split ? 0.1 : 0));
  if (split) {
    layers::check_tensor(kMultiHead, "width", config.dtype, {config.width, config.width});
  } else {
    layers::check_tensor(kMultiHead, "width or heads", config.dtype,
                         {config.heads, config.width, config.width});
  }
  parameters_ = zeros(config_);
}

MultiHeadAttention::Parameters MultiHeadAttention::zero_gradients() const { return zeros(config_); }

void MultiHeadAttention::forward(const LayerInputs& inputs, RunState& run, Saved& saved,
                                 const Outputs& outputs, Context& context) const {
  const layers::NamedView q{"q", inputs.q};
  const layers::NamedView k{"k", inputs.k};
  const layers::NamedView v{"v", inputs.v};
  for (const auto& x : {q, k, v}) {
    layers::check_rows(kMultiHeadForward, x, config_.dtype, config_.width);
  }
  Dims merged = out_shape(inputs);
  layers::check_same(kMultiHeadForward, {"out", outputs.out}, config_.dtype, merged);
  layers::check_outputs(kMultiHeadForward, outputs, {q, k, v});

  saved.inputs = {};  // no backward pass if this one throws
  const double divisor = divisor_of(config_);
  project(kMultiHeadForward, inputs.q, parameters_.q, divisor, saved.q, context);
  project(kMultiHeadForward, inputs.k, parameters_.k, divisor, saved.k, context);
  project(kMultiHeadForward, inputs.v, parameters_.v, 1, saved.v, context);

  // Heads are written where the merged array wants them.
  merged[merged.rank() - 1] = saved.v.size(-1);
  layers::resize(saved.heads, config_.dtype, merged);
  const Index heads = config_.heads;
  Outputs inner = outputs;
  inner.out = split_heads(saved.heads.view(), heads);
  saved.dropout = layers::dropout_of(*config_.dropout, run);
  layers::attend({split_heads(ConstView(saved.q), heads), split_heads(ConstView(saved.k), heads),
                  split_heads(ConstView(saved.v), heads)},
                 options_of(config_, inputs, saved.dropout), inner, saved.lse,
                 core::sub_dims(inner.out.shape(), 0, inner.out.rank() - 1), context);

  layers::linear_forward(kMultiHeadForward, saved.heads, parameters_.o, outputs.out, context);
  saved.inputs = inputs;
  layers::advance(run);
}

void MultiHeadAttention::backward(const Saved& saved, const OutputGradients& output_gradients,
                                  const LayerInputGradients& input_gradients, Parameters& gradients,
                                  Context& context) const {
  const LayerInputs& inputs = saved.inputs;
  const LayerInputGradients& d = input_gradients;
  if (!inputs.q.given()) throw Error(kMultiHeadBackward, "saved", "must come from a forward pass");
  if (saved.heads.dtype() != config_.dtype || inputs.q.size(-1) != config_.width ||
      saved.heads.size(-1) != parameters_.o.weight.size(1)) {
    throw Error(kMultiHeadBackward, "saved", "must come from a forward pass of this layer");
  }
  const ConstView dout = output_gradients.out;
  Dims shape = saved.heads.shape();
  shape[shape.rank() - 1] = config_.width;
  layers::check_same(kMultiHeadBackward, {"output_gradients.out", dout}, config_.dtype, shape);
  check_gradients(inputs, dout, d);

  // undoes linear_forward(heads)
  Tensor d_heads(config_.dtype, saved.heads.shape());
  layers::linear_backward_parameters(kMultiHeadBackward, saved.heads, dout, gradients.o, d.write,
                                     context);
  layers::linear_backward_input(kMultiHeadBackward, dout, parameters_.o, d_heads, Write::kOverwrite,
                                context);

  // undoes attend()
  const Index heads = config_.heads;
  const auto split = [&](const Tensor& x) { return split_heads(ConstView(x), heads); };
  Tensor dq(config_.dtype, saved.q.shape());
  Tensor dk(config_.dtype, saved.k.shape());
  Tensor dv(config_.dtype, saved.v.shape());
  OutputGradients inner = output_gradients;
  inner.out = split(d_heads);
  attention_backward({split(saved.q), split(saved.k), split(saved.v)},
                     options_of(config_, inputs, saved.dropout), {split(saved.heads), saved.lse},
                     inner,
                     {.q = split_heads(dq.view(), heads),
                      .k = split_heads(dk.view(), heads),
                      .v = split_heads(dv.view(), heads)},
                     context);

  // undoes the three project(), in the order q, k, v; one buffer gets the sum
  const double divisor = divisor_of(config_);
  const Write write_k = same_array(d.k, d.q) ? Write::kAccumulate : d.write;
  const Write write_v = same_array(d.v, d.q) || same_array(d.v, d.k) ? Write::kAccumulate : d.write;
  project_backward(kMultiHeadBackward, inputs.q, parameters_.q, divisor, dq,
                   {d.q, d.write, gradients.q, d.write}, context);
  project_backward(kMultiHeadBackward, inputs.k, parameters_.k, divisor, dk,
                   {d.k, write_k, gradients.k, d.write}, context);
  project_backward(kMultiHeadBackward, inputs.v, parameters_.v, 1, dv,
                   {d.v, write_v, gradients.v, d.write}, context);
}

}  // namespace qkv
