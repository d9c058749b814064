// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <qkv/layers/gru_stack.h>

#include "core/message.h"
#include "layers/checks.h"
#include "layers/gru_parameters.h"

namespace qkv {
namespace {

constexpr std::string_view kGruStackForward = "GruStack::forward";
constexpr std::string_view kGruStackBackward = "GruStack::backward";

// Returns the part of states [layers*directions,B,hidden] for one layer.
template <class AnyView>
AnyView part_of(const AnyView& states, Index layer, Index directions) {
  return states.given() ? slice(states, 0, layer * directions, (layer + 1) * directions)
                        : AnyView();
}

}  // namespace

GruStack::GruStack(const GruConfig& config, Index layers) : config_(config) {
  layers::check_size("GruStack", "layers", layers);
  GruConfig layer_config = config;
  for (Index n = 0; n < layers; ++n) {
    Gru& layer = layers_.emplace_back(layer_config);
    layer.parameters().forward.suffix = "_l" + std::to_string(n);
    layer.parameters().backward.suffix = "_l" + std::to_string(n) + "_reverse";
    layer_config.input = directions() * config.hidden;
  }
}

GruStack::Parameters GruStack::zero_gradients() const {
  Parameters gradients;
  for (const Gru& layer : layers_) gradients.layers.push_back(layer.zero_gradients());
  return gradients;
}

void GruStack::forward(const GruInputs& inputs, Saved& saved, const GruOutputs& outputs,
                       Context& context) const {
  saved.layers.resize(layers_.size());
  try {
    compute(inputs, saved.between, outputs,
            [&](std::size_t n, const GruInputs& in, const GruOutputs& out) {
              layers_[n].forward(in, saved.layers[n], out, context);
            });
  } catch (...) {
    for (Gru::Saved& layer : saved.layers) layer.x = {};  // so that backward() refuses `saved`
    throw;
  }
}

void GruStack::forward(const GruInputs& inputs, const Packed& packed, const GruOutputs& outputs,
                       Context& context) const {
  if (packed.layers.size() != layers_.size()) {
    throw Error(kGruStackForward, "packed", "must come from pack() of this layer");
  }
  std::vector<Tensor> between;
  compute(inputs, between, outputs, [&](std::size_t n, const GruInputs& in, const GruOutputs& out) {
    layers_[n].forward(in, packed.layers[n], out, context);
    if (n > 0) between[n - 1] = {};
  });
}

GruStack::Packed GruStack::pack(Context& context) const {
  Packed packed;
  for (const Gru& layer : layers_) packed.layers.push_back(layer.pack(context));
  return packed;
}

// Calls each(n, inputs, outputs), which runs layer n, for all layers. The outputs of all layers but
// the last are stored in `between`.
template <class Each>
void GruStack::compute(const GruInputs& inputs, std::vector<Tensor>& between,
                       const GruOutputs& outputs, const Each& each) const {
  const ConstView& x = inputs.x;
  const Index B = x.rank() == 3 ? x.size(0) : 0;
  const Dims states{layers() * directions(), B, config_.hidden};
  const auto check = [&](std::string_view name, const ConstView& view) {
    if (!view.given()) return;
    layers::check_same(kGruStackForward, {name, view}, config_.dtype, states);
  };
  if (x.rank() == 3) {  // the first layer reports another rank
    check("inputs.state", inputs.state);
    check("outputs.state", outputs.state);
    layers::check_same(kGruStackForward, {"outputs.out", outputs.out}, config_.dtype,
                       {B, x.size(1), directions() * config_.hidden});
    layers::check_apart(
        kGruStackForward, {"outputs.out", outputs.out},
        {{"inputs.x", x}, {"inputs.lengths", inputs.lengths}, {"inputs.state", inputs.state}});
    if (outputs.state.given()) {  // checked as a whole, since each layer sees only its part
      layers::check_apart(kGruStackForward, {"outputs.state", outputs.state},
                          {{"inputs.x", x},
                           {"inputs.lengths", inputs.lengths},
                           {"inputs.state", inputs.state},
                           {"outputs.out", outputs.out}});
    }
  }
  between.resize(layers_.size() - 1);
  GruInputs in = inputs;
  for (Index n = 0; n < layers(); ++n) {
    const auto index = static_cast<std::size_t>(n);
    GruOutputs out = outputs;
    if (n + 1 < layers()) {
      const Index T = x.rank() == 3 ? x.size(1) : 0;
      between[index] = Tensor(config_.dtype, {B, T, directions() * config_.hidden});
      out.out = between[index].view();
    }
    if (x.rank() == 3) {
      in.state = part_of(inputs.state, n, directions());
      out.state = part_of(outputs.state, n, directions());
    }
    each(index, in, out);
    if (n + 1 < layers()) in.x = between[index];
  }
}

void GruStack::backward(const Saved& saved, const GruOutputGradients& output_gradients,
                        const GruInputGradients& input_gradients, Parameters& gradients,
                        Context& context) const {
  const bool is_saved =
      saved.layers.size() == layers_.size() &&
      std::ranges::all_of(saved.layers, [](const Gru::Saved& layer) { return layer.x.given(); });
  if (!is_saved) {
    throw Error(kGruStackBackward, "saved", "must come from a forward pass of this layer");
  }
  if (gradients.layers.size() != layers_.size()) {
    throw Error(
        kGruStackBackward, "gradients",
        core::text("must be those of ", layers_.size(), " layers, got ", gradients.layers.size()));
  }
  for (Index n = 0; n < layers(); ++n) {
    const auto index = static_cast<std::size_t>(n);
    const Gru::Parameters& p = layers_[index].parameters();
    layers::check_gradients(kGruStackBackward, gradients.layers[index].forward, p.forward);
    layers::check_gradients(kGruStackBackward, gradients.layers[index].backward, p.backward);
  }
  if (input_gradients.write != Write::kOverwrite) {
    throw Error(kGruStackBackward, "input_gradients.write", "must be kOverwrite");
  }
  const Tensor& x = saved.layers.front().x;
  const auto check = [&](std::string_view name, const ConstView& state) {
    if (!state.given()) return;
    layers::check_same(kGruStackBackward, {name, state}, config_.dtype,
                       {layers() * directions(), x.size(0), config_.hidden});
  };
  if (input_gradients.x.given()) {
    layers::check_same(kGruStackBackward, {"input_gradients.x", input_gradients.x}, config_.dtype,
                       x.shape());
  }
  if (output_gradients.out.given()) {
    layers::check_same(kGruStackBackward, {"output_gradients.out", output_gradients.out},
                       config_.dtype, {x.size(0), x.size(1), directions() * config_.hidden});
  }
  check("output_gradients.state", output_gradients.state);
  check("input_gradients.state", input_gradients.state);
  if (input_gradients.state.given()) {  // checked as a whole, since each layer sees only its part
    layers::check_apart(kGruStackBackward, {"input_gradients.state", input_gradients.state},
                        {{"output_gradients.state", output_gradients.state},
                         {"output_gradients.out", output_gradients.out},
                         {"input_gradients.x", input_gradients.x}});
  }
  Tensor dout;
  for (Index n = layers() - 1; n >= 0; --n) {
    const auto index = static_cast<std::size_t>(n);
    GruOutputGradients from{n + 1 == layers() ? output_gradients.out : ConstView(dout),
                            part_of(output_gradients.state, n, directions())};
    GruInputGradients to{.x = input_gradients.x,
                         .state = part_of(input_gradients.state, n, directions())};
    Tensor below;
    if (n > 0) {
      below = Tensor(config_.dtype, saved.between[index - 1].shape());
      to.x = below.view();
    }
    layers_[index].backward(saved.layers[index], from, to, gradients.layers[index], context);
    dout = std::move(below);
  }
}

}  // namespace qkv
