// SPDX-License-Identifier: Apache-2.0
#include <qkv/layers/score_layers.h>

#include "layers/attend.h"
#include "layers/checks.h"
#include "layers/gradients.h"

// Each layer passes its name, parameters, score and the score's gradients to ScoreLayer
// (layers/attend.h), which computes.
namespace qkv {
namespace {

using layers::check_dtype;
using layers::check_size;
using layers::check_tensor;
using layers::checked_dropout;
using layers::ScoreLayer;
using layers::zeros_like;

constexpr std::string_view kDot = "DotProductAttention";
constexpr std::string_view kAdditive = "AdditiveAttention";
constexpr std::string_view kBilinear = "BilinearAttention";

Additive score_of(const AdditiveAttention::Parameters& p) {
  return {.wq = p.w_q, .wk = p.w_k, .v = p.v};
}
Bilinear score_of(const BilinearAttention::Parameters& p) { return {.w = p.w}; }

// Checks q's dtype and the widths of q and k before attention() does, whose messages would name the
// score's parameters, not the layer's.
void check_inputs(std::string_view function, const LayerInputs& inputs, DType dtype,
                  Index query_width, Index key_width) {
  layers::check_computed_in(function, {"q", inputs.q}, dtype);
  layers::check_channels(function, {"q", inputs.q}, query_width, "query_width");
  layers::check_channels(function, {"k", inputs.k}, key_width, "key_width");
}

}  // namespace

// ---- dot product ----------------------------------------------------------------------------

DotProductAttention::DotProductAttention(double dropout)
    : dropout_(checked_dropout(kDot, dropout)) {}

void DotProductAttention::forward(const LayerInputs& inputs, RunState& run, Saved& saved,
                                  const Outputs& outputs, Context& context) const {
  ScoreLayer{kDot, ScaledDot{}, dropout_}.forward(inputs, run, saved, outputs, context);
}

void DotProductAttention::backward(const Saved& saved, const OutputGradients& output_gradients,
                                   const LayerInputGradients& input_gradients,
                                   Parameters& /*gradients*/, Context& context) const {
  ScoreLayer{kDot, ScaledDot{}, dropout_}.backward(saved, output_gradients, input_gradients, {},
                                                   context);
}

// ---- additive -------------------------------------------------------------------------------

AdditiveAttention::AdditiveAttention(Index query_width, Index key_width, Index units,
                                     double dropout, DType dtype)
    : dropout_(checked_dropout(kAdditive, dropout)) {
  check_dtype(kAdditive, dtype);
  check_size(kAdditive, "query_width", query_width);
  check_size(kAdditive, "key_width", key_width);
  check_size(kAdditive, "units", units);
  check_tensor(kAdditive, "query_width or units", dtype, {units, query_width});
  check_tensor(kAdditive, "key_width or units", dtype, {units, key_width});
  parameters_ = {Tensor(dtype, {units, query_width}), Tensor(dtype, {units, key_width}),
                 Tensor(dtype, {units})};
}

AdditiveAttention::Parameters AdditiveAttention::zero_gradients() const {
  return {zeros_like(parameters_.w_q), zeros_like(parameters_.w_k), zeros_like(parameters_.v)};
}

void AdditiveAttention::forward(const LayerInputs& inputs, RunState& run, Saved& saved,
                                const Outputs& outputs, Context& context) const {
  saved.out = {};  // backward() refuses `saved` if this call throws
  const Parameters& p = parameters_;
  check_inputs("AdditiveAttention::forward", inputs, p.v.dtype(), p.w_q.size(1), p.w_k.size(1));
  ScoreLayer{kAdditive, score_of(parameters_), dropout_}.forward(inputs, run, saved, outputs,
                                                                 context);
}

void AdditiveAttention::backward(const Saved& saved, const OutputGradients& output_gradients,
                                 const LayerInputGradients& input_gradients, Parameters& gradients,
                                 Context& context) const {
  const AdditiveGradient d_score{.wq = gradients.w_q, .wk = gradients.w_k, .v = gradients.v};
  ScoreLayer{kAdditive, score_of(parameters_), dropout_}.backward(
      saved, output_gradients, input_gradients, d_score, context);
}

// ---- bilinear -------------------------------------------------------------------------------

BilinearAttention::BilinearAttention(Index query_width, Index key_width, double dropout,
                                     DType dtype)
    : dropout_(checked_dropout(kBilinear, dropout)) {
  check_dtype(kBilinear, dtype);
  check_size(kBilinear, "query_width", query_width);
  check_size(kBilinear, "key_width", key_width);
  check_tensor(kBilinear, "query_width or key_width", dtype, {query_width, key_width});
  parameters_ = {Tensor(dtype, {query_width, key_width})};
}

BilinearAttention::Parameters BilinearAttention::zero_gradients() const {
  return {zeros_like(parameters_.w)};
}

void BilinearAttention::forward(const LayerInputs& inputs, RunState& run, Saved& saved,
                                const Outputs& outputs, Context& context) const {
  saved.out = {};  // backward() refuses `saved` if this call throws
  const Tensor& w = parameters_.w;
  check_inputs("BilinearAttention::forward", inputs, w.dtype(), w.size(0), w.size(1));
  ScoreLayer{kBilinear, score_of(parameters_), dropout_}.forward(inputs, run, saved, outputs,
                                                                 context);
}

void BilinearAttention::backward(const Saved& saved, const OutputGradients& output_gradients,
                                 const LayerInputGradients& input_gradients, Parameters& gradients,
                                 Context& context) const {
  ScoreLayer{kBilinear, score_of(parameters_), dropout_}.backward(
      saved, output_gradients, input_gradients, BilinearGradient{.w = gradients.w}, context);
}

}  // namespace qkv
