// SPDX-License-Identifier: Apache-2.0
#include "layers/attend.h"

#include <string>
#include <utility>

#include "core/message.h"
#include "core/shapes.h"
#include "layers/checks.h"
#include "layers/learned_key.h"

namespace qkv::layers {

Dropout dropout_of(double p, const RunState& run) {
  if (run.mode == Mode::kEvaluate || p == 0) return {};
  return {p, dropout_seed(run)};
}

void advance(RunState& run) {
  if (run.mode == Mode::kTrain) ++run.step;
}

Options options_of(const Score& score, const ConstView& lengths, const std::vector<Mask>& masks,
                   const Dropout& dropout) {
  Options options;
  options.score = score;
  options.masks = masks;
  if (lengths.given()) options.masks.emplace_back(KeyLengths{lengths});
  options.dropout = dropout;
  return options;
}

Options options_of(const Score& score, const LayerInputs& inputs, const Dropout& dropout) {
  Options options = options_of(score, inputs.lengths, inputs.masks, dropout);
  options.bias = inputs.bias;
  options.diagonal = inputs.diagonal;
  options.mods = inputs.mods;
  return options;
}

void resize(Tensor& tensor, DType dtype, const Dims& shape) {
  if (tensor.dtype() != dtype || !(tensor.shape() == shape)) tensor = Tensor(dtype, shape);
}

void attend(const Inputs& inputs, const Options& options, Outputs outputs, Tensor& lse,
            const Dims& lse_shape, Context& context) {
  resize(lse, accumulator_of(inputs.q.dtype()), lse_shape);
  // If the caller gave a buffer for lse, it is passed to attention(), which checks it.
  const bool asked = outputs.lse.given();
  if (!asked) outputs.lse = lse;
  attention(inputs, options, outputs, context);
  if (asked) copy(outputs.lse, lse);
}

CapturedBuffers::CapturedBuffers(const std::vector<CapturedGradient>& wanted, Write write)
    : filled_(wanted) {
  if (write == Write::kOverwrite) return;
  memory_.reserve(wanted.size());
  for (CapturedGradient& gradient : filled_) {
    if (!gradient.to.given()) continue;  // attention_backward() refuses it
    to_.push_back(gradient.to);
    gradient.to = memory_.emplace_back(gradient.to.dtype(), gradient.to.shape()).view();
  }
}

void CapturedBuffers::give() const {
  for (std::size_t n = 0; n < to_.size(); ++n) {
    layers::write_or_add(memory_[n], to_[n], Write::kAccumulate);
  }
}

void ScoreLayer::forward(const LayerInputs& inputs, RunState& run, AttentionSaved& saved,
                         const Outputs& outputs, Context& context) const {
  saved.out = {};  // backward() refuses `saved` if this call throws
  const std::string function = std::string(name) + "::forward";
  const ConstView out = outputs.out;
  // attention() reports an out of rank 1.
  if (!out.given() || out.rank() < 1)
    throw Error(function, "out", "must be given, of rank 2 or more");
  for (const auto& [argument, array] : {std::pair("k", inputs.k), {"v", inputs.v}}) {
    if (array.dtype() != DType::kQ8) continue;
    throw Error(function, argument, core::text("must not be q8, got ", describe(array)),
                ErrorKind::kType);
  }
  const Dropout drawn = dropout_of(dropout, run);
  attend({inputs.q, inputs.k, inputs.v}, options_of(score, inputs, drawn), outputs, saved.lse,
         core::sub_dims(out.shape(), 0, out.rank() - 1), context);
  saved.inputs = inputs;
  saved.out = out;
  saved.dropout = drawn;
  advance(run);
}

void ScoreLayer::backward(const AttentionSaved& saved, const OutputGradients& output_gradients,
                          const LayerInputGradients& input_gradients, const ScoreGradient& d_score,
                          Context& context) const {
  if (!saved.out.given()) {
    throw Error(std::string(name) + "::backward", "saved", "must come from a forward pass");
  }
  const LayerInputs& inputs = saved.inputs;
  attention_backward({inputs.q, inputs.k, inputs.v}, options_of(score, inputs, saved.dropout),
                     {saved.out, saved.lse}, output_gradients,
                     {.q = input_gradients.q,
                      .k = input_gradients.k,
                      .v = input_gradients.v,
                      .score = d_score,
                      .bias = input_gradients.bias,
                      .captured = input_gradients.captured,
                      .write = input_gradients.write},
                     context);
}

}  // namespace qkv::layers
