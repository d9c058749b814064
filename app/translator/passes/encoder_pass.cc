// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/encoder_pass.h"

#include <utility>

#include "core/elementary.h"
#include "core/storage.h"
#include "translator/passes/values.h"

namespace qkv::app {

EncoderPass::EncoderPass(const TranslatorConfig& config, const TranslatorLayers& layers,
                         TokenBatch sources, Context& context)
    : config_(config),
      layers_(layers),
      sources_(std::move(sources)),
      context_(context),
      dropout_(config.dropout) {}

void EncoderPass::forward(RunState& run) {
  embed(run);
  layers_.encoder.forward({embedded_, sources_.lengths, {}}, saved_gru_, {states_, last_},
                          context_);
}

void EncoderPass::evaluate(const GruStack::Packed& packed) {
  RunState run;
  embed(run);
  layers_.encoder.forward({embedded_, sources_.lengths, {}}, packed, {states_, last_}, context_);
  embedded_ = {};
}

void EncoderPass::embed(RunState& run) {
  const Index B = sources_.count;
  const Index T = sources_.longest;
  embedded_ = Tensor(config_.dtype, {B, T, config_.embedding});
  states_ = Tensor(config_.dtype, {B, T, 2 * config_.hidden});
  last_ = Tensor(config_.dtype, {2 * config_.encoder_layers, B, config_.hidden});
  layers_.source_embedding.forward(sources_.view(), saved_embedding_, embedded_, context_);
  dropout_.forward(embedded_, run, saved_dropout_, embedded_);
}

void EncoderPass::backward(const Tensor& d_states, const Tensor& d_last,
                           TranslatorGradients& gradients) {
  Tensor d_embedded(config_.dtype, embedded_.shape());
  Tensor d_lasts(config_.dtype, last_.shape());  // only the last layer's gradients are nonzero
  copy(d_last, of_last_layer(d_lasts.view()));
  layers_.encoder.backward(saved_gru_, {d_states, d_lasts}, {d_embedded, {}}, gradients.encoder,
                           context_);
  dropout_.backward(saved_dropout_, d_embedded, d_embedded);
  layers_.source_embedding.backward(saved_embedding_, d_embedded, gradients.source_embedding,
                                    Write::kOverwrite, context_);
}

void EncoderPass::start(const View& state) {
  layers_.start.forward(entry(of_last_layer(ConstView(last_)), 1), saved_start_, state, context_);
  core::dispatch(config_.dtype, [&]<class T>() {
    for_each_row<T>(state, state, [&](T* s, const T*) {
      for (Index u = 0; u < config_.hidden; ++u) s[u] = core::portable_tanh(s[u]);
    });
  });
}

void EncoderPass::start_backward(const ConstView& state, const View& d_state, const View& d_last,
                                 TranslatorGradients& gradients) {
  core::dispatch(config_.dtype, [&]<class T>() {
    for_each_row<T>(d_state, state, [&](T* d, const T* s) {
      for (Index u = 0; u < config_.hidden; ++u) d[u] *= T(1) - s[u] * s[u];
    });
  });
  Tensor d_from(config_.dtype, {1, sources_.count, config_.hidden});
  layers_.start.backward(saved_start_, d_state, d_from, gradients.start, Write::kOverwrite,
                         context_);
  add(entry(d_last, 1), d_from);
}

}  // namespace qkv::app
