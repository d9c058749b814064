// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include <qkv/layers/gru.h>
#include <qkv/layers/linear.h>
#include <qkv/layers/multi_head.h>

#include "tests/attention/frozen/cases.h"
#include "tests/attention/frozen/draw.h"

// Frozen passes of layers, whose projections and loops use the kernels of attention.
namespace qkv::test::frozen {
namespace {

// Parameters in the layer's order, with frozen numbers.
template <class Layer>
void draw_parameters(Layer& layer, Draw& draw) {
  for_each_parameter(layer, [&](const auto& p) {
    copy(numbers(draw, p.value.dtype(), p.value.shape(), 0.25), p.value.view());
  });
}

template <class Gradients>
void add_all(const Gradients& gradients, Hash& hash) {
  for_each_parameter(gradients, [&](const auto& p) { hash.add(p.value); });
}

struct Pass {
  Draw& draw;
  Context& context;
  Hash& hash;
};

void run_heads(const MultiHeadConfig& config, Pass pass) {
  MultiHeadAttention layer(config);
  draw_parameters(layer, pass.draw);
  const DType d = config.dtype;
  const auto width = [&](Index own) { return own > 0 ? own : config.width; };
  const Tensor q = numbers(pass.draw, d, {2, 49, config.width});
  const Tensor k = numbers(pass.draw, d, {2, 65, width(config.key_width)});
  const Tensor v = numbers(pass.draw, d, {2, 65, width(config.value_width)});
  const std::vector<Index> lengths{65, 40};
  RunState run{Mode::kTrain, 11, 3};
  MultiHeadAttention::Saved saved;
  Tensor out(d, q.shape());
  layer.forward({q, k, v, lengths}, run, saved, {.out = out}, pass.context);
  const Tensor dout = numbers(pass.draw, d, out.shape());
  Tensor dq(d, q.shape()), dk(d, k.shape()), dv(d, v.shape());
  MultiHeadAttention::Parameters gradients = layer.zero_gradients();
  layer.backward(saved, {.out = dout}, {.q = dq, .k = dk, .v = dv}, gradients, pass.context);
  for (const Tensor* x : {&out, &dq, &dk, &dv}) pass.hash.add(*x);
  add_all(gradients, pass.hash);
}

void run_gru(const GruConfig& config, Pass pass) {
  Gru layer(config);
  draw_parameters(layer, pass.draw);
  const DType d = config.dtype;
  const Tensor x = numbers(pass.draw, d, {3, 9, config.input});
  const std::vector<Index> lengths{9, 1, 5};
  Tensor out(d, {3, 9, layer.directions() * config.hidden});
  Tensor state(d, {layer.directions(), 3, config.hidden});
  Gru::Saved saved;
  layer.forward({.x = x, .lengths = lengths}, saved, {.out = out, .state = state}, pass.context);
  const Tensor dout = numbers(pass.draw, d, out.shape());
  const Tensor dstate = numbers(pass.draw, d, state.shape());
  Tensor dx(d, x.shape());
  Gru::Parameters gradients = layer.zero_gradients();
  layer.backward(saved, {.out = dout, .state = dstate}, {.x = dx}, gradients, pass.context);
  for (const Tensor* y : {&out, &state, &dx}) pass.hash.add(*y);
  add_all(gradients, pass.hash);
}

void run_linear(DType d, Write write, Pass pass) {
  Linear layer(130, 65, true, d);
  draw_parameters(layer, pass.draw);
  const Tensor x = numbers(pass.draw, d, {7, 49, 130});
  const Tensor dy = numbers(pass.draw, d, {7, 49, 65});
  Tensor y(d, dy.shape());
  Linear::Saved saved;
  layer.forward(x, saved, y, pass.context);
  Tensor dx = numbers(pass.draw, d, x.shape());
  Linear::Parameters gradients = layer.zero_gradients();
  layer.backward(saved, dy, dx, gradients, write, pass.context);
  pass.hash.add(y);
  pass.hash.add(dx);
  add_all(gradients, pass.hash);
}

}  // namespace

// The wide form divides by width^(1/4), an integer for 16: libm rounds nothing.
Outcome run_layer(int index, const std::string& target, int threads) {
  constexpr DType kSingle = DType::kFloat32;
  constexpr DType kDouble = DType::kFloat64;
  Outcome outcome;
  const auto with = [&](const std::string& name, DType d, const auto& run) {
    outcome.name = name + " " + std::string(name_of(d));
    outcome.features = {name.substr(0, name.find(' '))};
    if (target.empty()) return;
    Draw draw(0x5EED3000 + static_cast<std::uint64_t>(index));
    Context context = context_of("dot/" + target, threads);
    run(Pass{draw, context, outcome.hash});
  };
  const auto heads = [&](const std::string& name, const MultiHeadConfig& config) {
    with("MultiHeadAttention " + name, config.dtype,
         [&](const Pass& pass) { run_heads(config, pass); });
  };
  const auto gru = [&](const std::string& name, const GruConfig& config) {
    with("Gru " + name, config.dtype, [&](const Pass& pass) { run_gru(config, pass); });
  };
  const auto linear = [&](const std::string& name, DType d, Write write) {
    with("Linear " + name, d, [&](const Pass& pass) { run_linear(d, write, pass); });
  };
  switch (index) {
    case 0:
      heads("split, dropout", {.width = 80, .heads = 2});
      break;
    case 1:
      heads("split, grouped, sinks",
            {.width = 32, .heads = 4, .dropout = 0, .key_heads = 2, .sinks = true});
      break;
    case 2:
      heads("split, learned key, zeros, widths of k and v", {.width = 24,
                                                             .heads = 3,
                                                             .dropout = 0.5,
                                                             .bias = false,
                                                             .key_width = 65,
                                                             .value_width = 10,
                                                             .bias_kv = true,
                                                             .zero_attn = true});
      break;
    case 3:
      heads("wide", {.width = 16, .heads = 3, .form = HeadForm::kWide});
      break;
    case 4:
      heads("split", {.width = 40, .heads = 2, .dropout = 0, .dtype = kDouble});
      break;
    case 5:
      gru("70 -> 33", {.input = 70, .hidden = 33});
      break;
    case 6:
      gru("8 -> 65 both ways", {.input = 8, .hidden = 65, .bidirectional = true});
      break;
    case 7:
      gru("9 -> 5 without bias", {.input = 9, .hidden = 5, .bias = false, .dtype = kDouble});
      break;
    case 8:
      linear("130 -> 65", kSingle, Write::kOverwrite);
      break;
    default:
      linear("130 -> 65 added to", kDouble, Write::kAccumulate);
  }
  return outcome;
}

}  // namespace qkv::test::frozen
