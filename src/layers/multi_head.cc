// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <utility>

#include <qkv/layers/multi_head.h>

#include "core/message.h"
#include "core/shapes.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/gradients.h"
#include "layers/heads.h"
#include "layers/learned_key.h"
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
  const Index inner_keys = inner / c.heads * c.key_heads;
  const bool bias = split && c.bias;
  const auto vector = [&](bool given, Index size) {
    return given ? Tensor(c.dtype, {size}) : Tensor();
  };
  return {c.form,
          linear_parameters(c.dtype, inner, c.width, bias),
          linear_parameters(c.dtype, inner_keys, c.key_width, bias),
          linear_parameters(c.dtype, inner_keys, c.value_width, bias),
          linear_parameters(c.dtype, c.width, inner, c.bias),
          vector(c.bias_kv, inner_keys),
          vector(c.bias_kv, inner_keys),
          vector(c.sinks, c.heads)};
}

// The divisor of q and k. It is 1 in the split form, where the score scales.
double divisor_of(const MultiHeadConfig& c) {
  return c.form == HeadForm::kSplit ? 1 : std::sqrt(std::sqrt(static_cast<double>(c.width)));
}

Options options_of(const MultiHeadConfig& c, const LayerInputs& inputs) {
  const Score score = c.form == HeadForm::kSplit ? Score{ScaledDot{}} : Score{Dot{}};
  return layers::options_of(score, inputs, {});
}

// The sinks of a call: learned, zeros for zero_attn, or none.
ConstView sinks_of(const MultiHeadConfig& c, const MultiHeadAttention::Parameters& parameters,
                   const Tensor& zero) {
  if (c.sinks) return parameters.sinks;
  return c.zero_attn ? broadcast_to(zero, Dims(c.heads)) : ConstView();
}

// Returns the shape of out: [..,Tq,width], where .. are the leading axes of q, k and v, broadcast.
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

// Checks shapes, types and overlaps of the gradients of q, k and v, which may share one buffer, and
// of bias.
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
  if (!d.bias.given()) return;
  const layers::NamedView target{"input_gradients.bias", d.bias};
  if (!inputs.bias.given()) {
    throw Error(kMultiHeadBackward, target.name, "has no gradient, because bias is absent");
  }
  layers::check_same(kMultiHeadBackward, target, inputs.bias.dtype(), inputs.bias.shape());
  layers::check_apart(kMultiHeadBackward, target,
                      {{"q", inputs.q},
                       {"k", inputs.k},
                       {"v", inputs.v},
                       {"bias", inputs.bias},
                       {"output_gradients.out", dout},
                       {kNames[0], d.q},
                       {kNames[1], d.k},
                       {kNames[2], d.v}});
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const MultiHeadConfig& config) : config_(config) {
  layers::check_dtype(kMultiHead, config.dtype);
  layers::check_size(kMultiHead, "width", config.width);
  layers::check_size(kMultiHead, "heads", config.heads);
  const std::pair<const char*, Index*> others[] = {{"key_width", &config_.key_width},
                                                   {"value_width", &config_.value_width},
                                                   {"key_heads", &config_.key_heads}};
  for (const auto& [name, size] : others) {
    if (*size == 0) *size = name == std::string_view("key_heads") ? config.heads : config.width;
    layers::check_size(kMultiHead, name, *size);
  }
  if (config.heads % config_.key_heads != 0) {
    throw Error(
        kMultiHead, "key_heads",
        text("must divide heads, got ", config_.key_heads, " for ", config.heads, " heads"));
  }
  if (config.sinks && config.zero_attn) {
    throw Error(kMultiHead, "zero_attn",
                "is a sink of 0, which excludes sinks: set only one of them");
  }
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
  const Index channels = split ? config.width / config.heads : config.width;
  const Index inner_keys = channels * config_.key_heads;
  layers::check_tensor(kMultiHead, "key_width", config.dtype, {inner_keys, config_.key_width});
  layers::check_tensor(kMultiHead, "value_width", config.dtype, {inner_keys, config_.value_width});
  parameters_ = zeros(config_);
}

MultiHeadAttention::Parameters MultiHeadAttention::zero_gradients() const { return zeros(config_); }

void MultiHeadAttention::forward(const LayerInputs& inputs, RunState& run, Saved& saved,
                                 const Outputs& outputs, Context& context) const {
  saved.inputs = {};  // backward() refuses `saved` if this call throws
  const layers::NamedView q{"q", inputs.q};
  const layers::NamedView k{"k", inputs.k};
  const layers::NamedView v{"v", inputs.v};
  layers::check_rows(kMultiHeadForward, q, config_.dtype, config_.width);
  const auto name_of = [&](Index width, const char* name) {
    return width == config_.width ? "width" : name;
  };
  layers::check_rows(kMultiHeadForward, k, config_.dtype, config_.key_width,
                     name_of(config_.key_width, "key_width"));
  layers::check_rows(kMultiHeadForward, v, config_.dtype, config_.value_width,
                     name_of(config_.value_width, "value_width"));
  Dims merged = out_shape(inputs);
  layers::check_same(kMultiHeadForward, {"out", outputs.out}, config_.dtype, merged);
  layers::check_outputs(kMultiHeadForward, outputs, {q, k, v});

  const double divisor = divisor_of(config_);
  project(kMultiHeadForward, inputs.q, parameters_.q, divisor, saved.q, context);
  project(kMultiHeadForward, inputs.k, parameters_.k, divisor, saved.k, context);
  project(kMultiHeadForward, inputs.v, parameters_.v, 1, saved.v, context);

  const Index heads = config_.heads;
  const Index key_heads = config_.key_heads;
  saved.options = options_of(config_, inputs);
  if (config_.bias_kv) {
    layers::allow_learned_key(
        {split_heads(ConstView(saved.q), heads), split_heads(ConstView(saved.k), key_heads),
         split_heads(ConstView(saved.v), key_heads)},
        saved.options, saved.held, context);
    saved.k = layers::with_row(saved.k, parameters_.bias_k);
    saved.v = layers::with_row(saved.v, parameters_.bias_v);
  }

  // attention() writes each head directly to its channels of the merged array.
  merged[merged.rank() - 1] = saved.q.size(-1);
  layers::resize(saved.heads, config_.dtype, merged);
  Outputs inner = outputs;
  inner.out = split_heads(saved.heads.view(), heads);
  saved.dropout = layers::dropout_of(*config_.dropout, run);
  const Tensor zero(config_.dtype, Dims(1));
  Options options = saved.options;
  options.sinks = sinks_of(config_, parameters_, zero);
  options.dropout = saved.dropout;
  layers::attend(
      {split_heads(ConstView(saved.q), heads), split_heads(ConstView(saved.k), key_heads),
       split_heads(ConstView(saved.v), key_heads)},
      options, inner, saved.lse, core::sub_dims(inner.out.shape(), 0, inner.out.rank() - 1),
      context);

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
      inputs.k.size(-1) != config_.key_width || inputs.v.size(-1) != config_.value_width ||
      saved.heads.size(-1) != parameters_.o.weight.size(1) ||
      saved.k.size(-1) != parameters_.k.weight.size(0)) {
    throw Error(kMultiHeadBackward, "saved", "must come from a forward pass of this layer");
  }
  const ConstView dout = output_gradients.out;
  Dims shape = saved.heads.shape();
  shape[shape.rank() - 1] = config_.width;
  layers::check_same(kMultiHeadBackward, {"output_gradients.out", dout}, config_.dtype, shape);
  check_gradients(inputs, dout, d);
  layers::check_all_gradients(kMultiHeadBackward, gradients, parameters_);

  // Backward through linear_forward(heads):
  Tensor d_heads(config_.dtype, saved.heads.shape());
  layers::linear_backward_input(kMultiHeadBackward, dout, parameters_.o, d_heads, Write::kOverwrite,
                                context);

  // Backward through attend():
  const Index heads = config_.heads;
  const Index key_heads = config_.key_heads;
  const auto split = [&](const Tensor& x) { return split_heads(ConstView(x), heads); };
  const auto split_keys = [&](const Tensor& x) { return split_heads(ConstView(x), key_heads); };
  const Tensor zero(config_.dtype, Dims(1));
  Options options = saved.options;
  options.sinks = sinks_of(config_, parameters_, zero);
  options.dropout = saved.dropout;
  Tensor dbias;  // with bias_kv it has a column for the learned key
  if (d.bias.given() && config_.bias_kv) dbias = Tensor(config_.dtype, options.bias.shape());
  Tensor dsinks = gradients.sinks.given() ? Tensor(config_.dtype, {config_.heads}) : Tensor();
  Tensor dq(config_.dtype, saved.q.shape());
  Tensor dk(config_.dtype, saved.k.shape());
  Tensor dv(config_.dtype, saved.v.shape());
  OutputGradients inner = output_gradients;
  inner.out = split(d_heads);
  InputGradients to{.q = split_heads(dq.view(), heads),
                    .k = split_heads(dk.view(), key_heads),
                    .v = split_heads(dv.view(), key_heads)};
  if (d.bias.given()) {
    if (!dbias.given()) dbias = Tensor(config_.dtype, d.bias.shape());
    to.bias = dbias.view();
  }
  if (dsinks.given()) to.sinks = dsinks.view();
  const layers::CapturedBuffers captured(d.captured, d.write);
  to.captured = captured.filled();
  attention_backward({split(saved.q), split_keys(saved.k), split_keys(saved.v)}, options,
                     {split(saved.heads), saved.lse}, inner, to, context);
  // Only now are parameters' gradients written, after attention_backward() has checked the
  // remaining arguments.
  layers::linear_backward_parameters(kMultiHeadBackward, saved.heads, dout, gradients.o, d.write,
                                     context);
  captured.give();
  if (dsinks.given()) layers::write_or_add(dsinks, gradients.sinks.view(), d.write);
  if (d.bias.given() && config_.bias_kv) {
    layers::give_bias_gradient(dbias, d.bias, d.write);
  } else if (d.bias.given()) {
    layers::write_or_add(dbias, d.bias, d.write);
  }
  if (config_.bias_kv) {
    dk = layers::without_row(dk, gradients.bias_k.given() ? gradients.bias_k.view() : View(),
                             d.write);
    dv = layers::without_row(dv, gradients.bias_v.given() ? gradients.bias_v.view() : View(),
                             d.write);
  }

  // Backward through the three project() calls in the order q, k, v. If gradients share a buffer,
  // it receives their sum.
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
