// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <span>
#include <utility>

#include <qkv/layers/gru.h>

#include "core/message.h"
#include "core/storage.h"
#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/gru_parameters.h"
#include "layers/gru_sequence.h"
#include "runtime/tasks.h"

namespace qkv {
namespace {

using core::text;

constexpr std::string_view kGruForward = "Gru::forward";
constexpr std::string_view kGruPack = "Gru::pack";
constexpr std::string_view kGruBackward = "Gru::backward";

template <class T>
void read_lengths(const ConstView& lengths, Index T_max, std::vector<Index>& to) {
  for (Index b = 0; b < lengths.size(0); ++b) {
    const auto length = static_cast<Index>(lengths.as<T>()[b * lengths.stride(0)]);
    if (length < 0 || length > T_max) {
      throw Error(kGruForward, "lengths",
                  text("must be in 0..T = ", T_max, ", got ", length, " at [", b, "]"));
    }
    to.push_back(length);
  }
}

std::vector<Index> lengths_of(const GruInputs& inputs) {
  const Index B = inputs.x.size(0);
  const Index T_max = inputs.x.size(1);
  const ConstView& lengths = inputs.lengths;
  if (!lengths.given()) return std::vector<Index>(static_cast<std::size_t>(B), T_max);
  if (lengths.dtype() != DType::kInt32 && lengths.dtype() != DType::kInt64) {
    throw Error(kGruForward, "lengths", text("must be int32 or int64, got ", describe(lengths)),
                ErrorKind::kType);
  }
  if (lengths.rank() != 1 || lengths.size(0) != B) {
    throw Error(kGruForward, "lengths",
                text("must have the shape [", B, "], got ", describe(lengths)));
  }
  std::vector<Index> result;
  if (lengths.dtype() == DType::kInt32) {
    read_lengths<std::int32_t>(lengths, T_max, result);
  } else {
    read_lengths<std::int64_t>(lengths, T_max, result);
  }
  return result;
}

// Copies x to `to`, with zeros beyond each sequence, because padding may hold anything.
void copy_sequences(const ConstView& x, std::span<const Index> lengths, Tensor& to) {
  for (Index b = 0; b < x.size(0); ++b) {
    const Index length = lengths[static_cast<std::size_t>(b)];
    const auto part = [&](const auto& of, Index from, Index until) {
      return slice(slice(of, 0, b, b + 1), 1, from, until);
    };
    if (length > 0) copy(part(x, 0, length), part(to.view(), 0, length));
    if (length == x.size(1)) continue;
    const View rest = part(to.view(), length, x.size(1));
    std::memset(rest.data(), 0,
                static_cast<std::size_t>(rest.element_count()) * size_of(to.dtype()));
  }
}

layers::GruSequence sequence_of(const GruConfig& config, const Gru::Parameters& parameters,
                                const std::vector<Index>& lengths, Index T) {
  layers::GruSequence sequence;
  sequence.parameters[0] = &parameters.forward;
  sequence.parameters[1] = &parameters.backward;
  sequence.directions = config.bidirectional ? 2 : 1;
  sequence.input = config.input;
  sequence.hidden = config.hidden;
  sequence.B = static_cast<Index>(lengths.size());
  sequence.T = T;
  sequence.lengths = lengths.data();
  return sequence;
}

}  // namespace

Gru::Gru(const GruConfig& config) : config_(config) {
  parameters_.forward = layers::gru_parameters("Gru", config, "_l0");
  if (config.bidirectional) {
    parameters_.backward = layers::gru_parameters("Gru", config, "_l0_reverse");
  }
}

Gru::Parameters Gru::zero_gradients() const {
  return {layers::zeros_like(parameters_.forward), layers::zeros_like(parameters_.backward)};
}

void Gru::forward(const GruInputs& inputs, Saved& saved, const GruOutputs& outputs,
                  Context& context) const {
  compute(inputs, saved, nullptr, outputs, context);
}

void Gru::forward(const GruInputs& inputs, const Packed& packed, const GruOutputs& outputs,
                  Context& context) const {
  const GruConfig& c = packed.config;
  if (c.input != config_.input || c.hidden != config_.hidden || c.dtype != config_.dtype ||
      c.bidirectional != config_.bidirectional || !packed.ih[0].given() ||
      packed.ih[1].given() != config_.bidirectional) {
    throw Error(kGruForward, "packed", "must come from pack() of this layer");
  }
  Saved none;
  compute(inputs, none, &packed, outputs, context);
}

Gru::Packed Gru::pack(Context& context) const {
  Packed packed{.config = config_};
  core::dispatch(config_.dtype, [&]<class T>() {
    layers::pack_gru<T>(kGruPack, parameters_.forward, packed.ih[0], packed.hh[0], context);
    if (config_.bidirectional) {
      layers::pack_gru<T>(kGruPack, parameters_.backward, packed.ih[1], packed.hh[1], context);
    }
  });
  return packed;
}

// Runs a forward pass. With `packed` no backward pass follows, so states and gates are not saved.
void Gru::compute(const GruInputs& inputs, Saved& saved, const Packed* packed,
                  const GruOutputs& outputs, Context& context) const {
  saved.lengths.clear();
  Tensor sequences = std::exchange(saved.x, {});  // backward() refuses `saved` if this call throws
  const ConstView& x = inputs.x;
  if (!x.given() || x.rank() != 3) {
    throw Error(kGruForward, "x",
                text("must have the shape [B,T,", config_.input, "]",
                     x.given() ? ", got " + describe(x) : ""));
  }
  const Index B = x.size(0);
  const Index T = x.size(1);
  const Index H = config_.hidden;
  const Dims state_shape{directions(), B, H};
  layers::check_same(kGruForward, {"x", x}, config_.dtype, {B, T, config_.input});
  layers::check_same(kGruForward, {"out", outputs.out}, config_.dtype, {B, T, directions() * H});
  layers::check_apart(kGruForward, {"out", outputs.out},
                      {{"x", x}, {"inputs.state", inputs.state}, {"lengths", inputs.lengths}});
  if (inputs.state.given()) {
    layers::check_same(kGruForward, {"inputs.state", inputs.state}, config_.dtype, state_shape);
  }
  if (outputs.state.given()) {
    layers::check_same(kGruForward, {"outputs.state", outputs.state}, config_.dtype, state_shape);
    layers::check_apart(kGruForward, {"outputs.state", outputs.state},
                        {{"x", x},
                         {"inputs.state", inputs.state},
                         {"lengths", inputs.lengths},
                         {"out", outputs.out}});
  }
  std::vector<Index> lengths = lengths_of(inputs);
  layers::resize(sequences, config_.dtype, x.shape());
  copy_sequences(x, lengths, sequences);
  layers::GruTensors tensors{.x = sequences};
  if (packed == nullptr) {
    layers::resize(saved.states, config_.dtype, {directions(), B, T, H});
    layers::resize(saved.gates, config_.dtype, {directions(), B, T, 4 * H});
    tensors.states = saved.states.view();
    tensors.gates = saved.gates.view();
  }
  core::dispatch(config_.dtype, [&]<class R>() {
    layers::GruSequence sequence = sequence_of(config_, parameters_, lengths, T);
    sequence.packed = packed;
    layers::gru_forward<R>(sequence, tensors, inputs.state, outputs, context);
  });
  saved.x = std::move(sequences);
  saved.lengths = std::move(lengths);
}

void Gru::backward(const Saved& saved, const GruOutputGradients& output_gradients,
                   const GruInputGradients& input_gradients, Parameters& gradients,
                   Context& context) const {
  if (!saved.x.given()) throw Error(kGruBackward, "saved", "must come from a forward pass");
  const Index B = saved.x.size(0);
  const Index T = saved.x.size(1);
  const Index H = config_.hidden;
  const Dims state_shape{directions(), B, H};
  if (saved.x.dtype() != config_.dtype || saved.x.size(2) != config_.input ||
      !(saved.states.shape() == Dims{directions(), B, T, H})) {
    throw Error(kGruBackward, "saved", "must come from a forward pass of this layer");
  }
  const GruInputGradients& d = input_gradients;
  const auto check = [&](std::string_view name, const ConstView& view, const Dims& shape) {
    if (view.given()) layers::check_same(kGruBackward, {name, view}, config_.dtype, shape);
  };
  check("output_gradients.out", output_gradients.out, {B, T, directions() * H});
  check("output_gradients.state", output_gradients.state, state_shape);
  check("input_gradients.x", d.x, saved.x.shape());
  check("input_gradients.state", d.state, state_shape);
  const layers::NamedView dout{"output_gradients.out", output_gradients.out};
  const layers::NamedView dstate{"output_gradients.state", output_gradients.state};
  if (d.x.given()) layers::check_apart(kGruBackward, {"input_gradients.x", d.x}, {dout, dstate});
  if (d.state.given()) {
    layers::check_apart(kGruBackward, {"input_gradients.state", d.state},
                        {dout, dstate, {"input_gradients.x", d.x}});
  }
  layers::check_gradients(kGruBackward, gradients.forward, parameters_.forward);
  layers::check_gradients(kGruBackward, gradients.backward, parameters_.backward);

  const Dims gates_shape = saved.gates.shape();
  const runtime::BorrowedMemory borrowed(context, static_cast<std::size_t>(core::bytes_of(
                                                      config_.dtype, saved.gates.element_count())));
  const View dgates(borrowed.memory(), config_.dtype, gates_shape, contiguous_strides(gates_shape));
  const layers::GruSequence sequence = sequence_of(config_, parameters_, saved.lengths, T);
  core::dispatch(config_.dtype, [&]<class R>() {
    layers::gru_backward<R>(sequence, saved, output_gradients, dgates, d, context);
  });
  for (Index direction = 0; direction < directions(); ++direction) {
    const auto rows = [&](const ConstView& steps, Index width) {
      return reshape(slice(steps, 0, direction, direction + 1), {B * T, width});
    };
    layers::gru_parameter_gradients(
        kGruBackward, reshape(ConstView(saved.x), {B * T, config_.input}), rows(saved.states, H),
        rows(dgates, 4 * H), direction == 0 ? gradients.forward : gradients.backward, d.write,
        context);
  }
}

}  // namespace qkv
