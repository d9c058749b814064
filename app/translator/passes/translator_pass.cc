// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/translator_pass.h"

#include <algorithm>

#include <qkv/app/vocabulary.h>

#include "core/order.h"
#include "core/storage.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/values.h"

namespace qkv::app {
namespace {

std::vector<TokenList> side(std::span<const TokenPair> pairs, TokenList TokenPair::*which) {
  std::vector<TokenList> lists;
  lists.reserve(pairs.size());
  for (const TokenPair& pair : pairs) lists.push_back(pair.*which);
  return lists;
}

// The ids of a batch, which are stored as [B,Tt], transposed to [Tt,B].
std::vector<std::int32_t> by_steps(const TokenBatch& batch) {
  std::vector<std::int32_t> ids;
  ids.reserve(batch.ids.size());
  for (Index t = 0; t < batch.longest; ++t) {
    for (Index b = 0; b < batch.count; ++b) {
      ids.push_back(batch.ids[static_cast<std::size_t>(b * batch.longest + t)]);
    }
  }
  return ids;
}

// The decoder's input tokens [Tt,B]: the start token in step 0, then the step's preceding target
// token.
std::vector<std::int32_t> tokens_before(const std::vector<std::int32_t>& ids, Index B) {
  std::vector<std::int32_t> before(ids.size(), Vocabulary::kStart);
  std::copy(ids.begin(), ids.end() - B, before.begin() + B);
  return before;
}

// Calls f(live[n], n) for each n. A position is live if its target is not padding.
template <class F>
void for_each_live(const std::vector<Index>& live, const F& f) {
  for (std::size_t n = 0; n < live.size(); ++n) f(live[n], static_cast<Index>(n));
}

// The live rows of `from` [N,C], as [n,C].
Tensor gathered(const ConstView& from, const std::vector<Index>& live) {
  Tensor to(from.dtype(), {std::ssize(live), from.size(1)});
  core::dispatch(from.dtype(), [&]<class T>() {
    for_each_live(live, [&](Index position, Index n) {
      const T* const row = from.as<T>() + position * from.stride(0);
      std::copy_n(row, from.size(1), to.values<T>().data() + n * from.size(1));
    });
  });
  return to;
}

// Copies the rows of `from` [n,C] to the live rows of `to` [N,C], whose other rows stay unchanged.
void scatter(const Tensor& from, const std::vector<Index>& live, const View& to) {
  core::dispatch(to.dtype(), [&]<class T>() {
    for_each_live(live, [&](Index position, Index n) {
      const T* const row = from.values<T>().data() + n * to.size(1);
      std::copy_n(row, to.size(1), to.as<T>() + position * to.stride(0));
    });
  });
}

}  // namespace

TranslatorPass::TranslatorPass(std::string_view function, const TranslatorConfig& config,
                               const TranslatorLayers& layers, std::span<const TokenPair> pairs,
                               Context& context, const GruCell::Steps* decoder)
    : config_(config),
      layers_(layers),
      context_(context),
      packed_decoder_(decoder),
      targets_(token_batch(function, "pairs' target", side(pairs, &TokenPair::target),
                           config.target_tokens)),
      encoder_(config, layers,
               token_batch(function, "pairs' source", side(pairs, &TokenPair::source),
                           config.source_tokens),
               context),
      steps_(targets_.longest),
      B_(targets_.count),
      dropout_(config.dropout) {
  const std::vector<std::int32_t> ids = by_steps(targets_);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    if (ids[n] == Vocabulary::kPadding) continue;
    live_.push_back(static_cast<Index>(n));
    live_targets_.push_back(ids[n]);
  }
}

View TranslatorPass::states(Tensor& rows, Index first, Index count) const {
  return slice(slice(rows, 0, first, first + count), 2, 0, config_.hidden);
}
View TranslatorPass::inputs(Tensor& rows, Index first, Index count) const {
  return slice(slice(rows, 0, first, first + count), 2, config_.hidden, rows.size(2));
}
View TranslatorPass::seen(Tensor& rows, Index first, Index count) const {
  return slice(inputs(rows, first, count), 2, 0, context_width(config_));
}
View TranslatorPass::embeddings(Tensor& rows) const {
  return slice(inputs(rows, 1, steps_), 2, context_width(config_),
               context_width(config_) + config_.embedding);
}

void TranslatorPass::forward(RunState& run, const View& readout) {
  if (B_ == 0) return;
  encoder_.forward(run);
  decode(run);
  read_out(run, readout);
}

void TranslatorPass::backward(const View& d_readout, TranslatorGradients& gradients,
                              Write embedding) {
  if (B_ == 0) {
    for_each_parameter(gradients, [](const auto& gradient) {
      const Tensor zero(gradient.value.dtype(), {1});
      copy(zero, gradient.value);
    });
    return;
  }
  read_out_backward(d_readout, gradients);
  decode_backward(gradients, embedding);
}

// ---- the decoder ----------------------------------------------------------------------------

void TranslatorPass::decode(RunState& run) {
  const Index H = config_.hidden;
  rows_ = Tensor(config_.dtype, {1 + steps_, B_, H + context_width(config_) + config_.embedding});
  gates_ = Tensor(config_.dtype, {steps_, B_, 4 * H});
  memory_.emplace(config_, layers_, encoder_.result(), steps_, context_);
  encoder_.start(states(rows_, 0, 1));
  const std::vector<std::int32_t> before = tokens_before(by_steps(targets_), B_);
  layers_.target_embedding.forward(ConstView(before.data(), {steps_, B_}), saved_embedding_,
                                   embeddings(rows_), context_);
  dropout_.forward(embeddings(rows_), run, saved_embedding_dropout_, embeddings(rows_));
  if (packed_decoder_ != nullptr) {
    cell_.emplace(*packed_decoder_, context_);
  } else {
    cell_.emplace(layers_.decoder, context_);
  }
  for (Index t = 0; t < steps_; ++t) {
    const View s = states(rows_, t, 1);
    memory_->look(t, s, seen(rows_, t + 1, 1));
    cell_->forward(rows_of(inputs(rows_, t + 1, 1)), rows_of(s), rows_of(states(rows_, t + 1, 1)),
                   rows_of(entry(gates_.view(), t)));
  }
}

// Runs the steps from the last to the first. On entry d_rows_ holds the gradients from the readout.
void TranslatorPass::decode_backward(TranslatorGradients& gradients, Write embedding) {
  const Index H = config_.hidden;
  const Index width = layers_.decoder.parameters().weight_ih.size(1);
  d_gates_ = Tensor(config_.dtype, gates_.shape());
  Tensor d_input(config_.dtype, {1, B_, width});
  Tensor d_state(config_.dtype, {1, B_, H});
  for (Index t = steps_ - 1; t >= 0; --t) {
    const View ds = states(d_rows_, t, 1);  // gradient of state t: at first, the readout's part
    cell_->backward(rows_of(entry(ConstView(gates_), t)), rows_of(states(rows_, t, 1)),
                    rows_of(states(d_rows_, t + 1, 1)), rows_of(d_input.view()),
                    rows_of(d_state.view()), rows_of(entry(d_gates_.view(), t)));
    add(inputs(d_rows_, t + 1, 1), d_input);
    add(ds, d_state);
    memory_->look_back(t, states(rows_, t, 1), seen(rows_, t + 1, 1), seen(d_rows_, t + 1, 1), ds);
  }
  layers_.decoder.parameter_gradients(rows_of(inputs(rows_, 1, steps_)),
                                      rows_of(states(rows_, 0, steps_)), rows_of(d_gates_.view()),
                                      gradients.decoder, Write::kOverwrite, context_);
  dropout_.backward(saved_embedding_dropout_, embeddings(d_rows_), embeddings(d_rows_));
  layers_.target_embedding.backward(saved_embedding_, embeddings(d_rows_),
                                    gradients.target_embedding, embedding, context_);
  const EncodedSources sources = encoder_.result();
  Tensor d_states(config_.dtype, sources.states.shape());
  Tensor d_last(config_.dtype, sources.last.shape());
  memory_->finish(states(rows_, 0, steps_), seen(d_rows_, 1, steps_), d_states, d_last, gradients);
  encoder_.start_backward(states(rows_, 0, 1), states(d_rows_, 0, 1), d_last, gradients);
  encoder_.backward(d_states, d_last, gradients);
}

// ---- the readout ----------------------------------------------------------------------------

// Writes t_i: the larger number of each pair in the readout layer's output (maxout with two pieces,
// Goodfellow et al. 2013), after dropout.
void TranslatorPass::read_out(RunState& run, const View& largest) {
  const ConstView all = rows_of(slice(ConstView(rows_), 0, 1, 1 + steps_));
  if (has_padding()) live_rows_ = gathered(all, live_);
  maxout_input_ = Tensor(config_.dtype, {std::ssize(live_), 2 * readout_width(config_)});
  layers_.readout.forward(has_padding() ? ConstView(live_rows_) : all, saved_readout_,
                          maxout_input_, context_);
  larger_of_pairs(maxout_input_, largest);
  dropout_.forward(largest, run, saved_readout_dropout_, largest);
}

void TranslatorPass::read_out_backward(const View& d_largest, TranslatorGradients& gradients) {
  d_rows_ = Tensor(config_.dtype, rows_.shape());
  dropout_.backward(saved_readout_dropout_, d_largest, d_largest);
  larger_of_pairs_backward(d_largest,
                           maxout_input_);  // overwrites maxout_input_ with its gradient
  const View all = rows_of(slice(d_rows_.view(), 0, 1, 1 + steps_));
  Tensor d_live;
  if (has_padding()) d_live = Tensor(config_.dtype, live_rows_.shape());
  layers_.readout.backward(saved_readout_, maxout_input_, has_padding() ? d_live.view() : all,
                           gradients.readout, Write::kOverwrite, context_);
  if (has_padding()) scatter(d_live, live_, all);
}

}  // namespace qkv::app
