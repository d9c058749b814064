// SPDX-License-Identifier: Apache-2.0
#include "models/translator_pass.h"

#include <algorithm>
#include <cmath>

#include <qkv/app/vocabulary.h>

#include "core/order.h"
#include "models/output_layer.h"
#include "models/values.h"

namespace qkv::app {
namespace {

// Rows of logits at a time. About 2^20 numbers bound the memory of large vocabularies, but whole
// blocks of rows: the gradient of the weight is read and written once for each block.
Index logits_at_once(Index V) {
  constexpr Index kLogits = Index{1} << 20;
  return std::max<Index>(1, kLogits / V / core::kGradientBlock) * core::kGradientBlock;
}

std::vector<TokenList> side(std::span<const TokenPair> pairs, TokenList TokenPair::*which) {
  std::vector<TokenList> lists;
  lists.reserve(pairs.size());
  for (const TokenPair& pair : pairs) lists.push_back(pair.*which);
  return lists;
}

// [B,Tt] -> [Tt,B].
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

// The decoder's inputs: the start token, then the preceding tokens.
std::vector<std::int32_t> tokens_before(const std::vector<std::int32_t>& ids, Index B) {
  std::vector<std::int32_t> before(ids.size(), Vocabulary::kStart);
  std::copy(ids.begin(), ids.end() - B, before.begin() + B);
  return before;
}

// losses [2,N]: with smoothed labels, and log-probabilities.
TranslationLoss sum_losses(const Tensor& losses, const std::vector<std::int32_t>& targets) {
  TranslationLoss sums;
  with_type(losses.dtype(), [&]<class T>() {
    const std::span<const T> values = losses.values<T>();
    for (std::size_t n = 0; n < targets.size(); ++n) {
      sums.loss += static_cast<double>(values[n]);
      sums.log_probability += static_cast<double>(values[targets.size() + n]);
      sums.tokens += targets[n] == Vocabulary::kPadding ? 0 : 1;
    }
  });
  return sums;
}

}  // namespace

TranslatorPass::TranslatorPass(std::string_view function, const TranslatorConfig& config,
                               const TranslatorLayers& layers, std::span<const TokenPair> pairs,
                               Context& context, const PackedLinear* output)
    : config_(config),
      layers_(layers),
      context_(context),
      targets_(token_batch(function, "pairs' target", side(pairs, &TokenPair::target),
                           config.target_tokens)),
      encoder_(config, layers,
               token_batch(function, "pairs' source", side(pairs, &TokenPair::source),
                           config.source_tokens),
               context),
      packed_output_(output),
      steps_(targets_.longest),
      B_(targets_.count),
      dropout_(config.dropout) {}

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

TranslationLoss TranslatorPass::forward(RunState& run) {
  if (B_ == 0) return {};
  encoder_.forward(run);
  decode(run);
  read_out(run);
  return predict(nullptr);
}

TranslationLoss TranslatorPass::forward_and_backward(RunState& run,
                                                     TranslatorGradients& gradients) {
  if (B_ == 0) {
    for_each_parameter(gradients, [](const auto& gradient) {
      const Tensor zero(gradient.value.dtype(), {1});
      copy(zero, gradient.value);
    });
    return {};
  }
  backward_ = true;
  encoder_.forward(run);
  decode(run);
  read_out(run);
  const TranslationLoss loss = predict(&gradients);
  read_out_backward(gradients);
  decode_backward(gradients);
  return loss;
}

// ---- the decoder ----------------------------------------------------------------------------

void TranslatorPass::decode(RunState& run) {
  const Index H = config_.hidden;
  rows_ = Tensor(config_.dtype, {1 + steps_, B_, H + context_width(config_) + config_.embedding});
  gates_ = Tensor(config_.dtype, {steps_, B_, 4 * H});
  memory_.emplace(config_, layers_, encoder_.result(), backward_ ? steps_ : 0, context_);
  encoder_.start(states(rows_, 0, 1));
  const std::vector<std::int32_t> before = tokens_before(by_steps(targets_), B_);
  layers_.target_embedding.forward(ConstView(before.data(), {steps_, B_}), saved_embedding_,
                                   embeddings(rows_), context_);
  dropout_.forward(embeddings(rows_), run, saved_embedding_dropout_, embeddings(rows_));
  cell_.emplace(layers_.decoder, context_);
  for (Index t = 0; t < steps_; ++t) {
    const View s = states(rows_, t, 1);
    if (backward_) {
      memory_->look(t, s, seen(rows_, t + 1, 1));
    } else {
      memory_->look(s, seen(rows_, t + 1, 1), {});
    }
    cell_->forward(rows_of(inputs(rows_, t + 1, 1)), rows_of(s), rows_of(states(rows_, t + 1, 1)),
                   rows_of(entry(gates_.view(), t)));
  }
}

// From the last step to the first; d_rows_ holds the readout's gradients.
void TranslatorPass::decode_backward(TranslatorGradients& gradients) {
  const Index H = config_.hidden;
  const Index width = layers_.decoder.parameters().weight_ih.size(1);
  d_gates_ = Tensor(config_.dtype, gates_.shape());
  Tensor d_input(config_.dtype, {1, B_, width});
  Tensor d_state(config_.dtype, {1, B_, H});
  for (Index t = steps_ - 1; t >= 0; --t) {
    const View ds = states(d_rows_, t, 1);  // of s_{t-1}: so far only the readout's
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
  // Tied, the output's part of the gradient is there already.
  const bool is_tied = config_.tied_embeddings == TiedEmbeddings::kOutput;
  layers_.target_embedding.backward(saved_embedding_, embeddings(d_rows_),
                                    gradients.target_embedding,
                                    is_tied ? Write::kAccumulate : Write::kOverwrite, context_);
  const EncodedSources sources = encoder_.result();
  Tensor d_states(config_.dtype, sources.states.shape());
  Tensor d_last(config_.dtype, sources.last.shape());
  memory_->finish(states(rows_, 0, steps_), seen(d_rows_, 1, steps_), d_states, d_last, gradients);
  encoder_.start_backward(states(rows_, 0, 1), states(d_rows_, 0, 1), d_last, gradients);
  encoder_.backward(d_states, d_last, gradients);
}

// ---- the output -----------------------------------------------------------------------------

// t_i: the larger of each pair of the readout (Goodfellow et al. 2013, with 2 pieces).
void TranslatorPass::read_out(RunState& run) {
  const Index width = readout_width(config_);
  pairs_ = Tensor(config_.dtype, {steps_ * B_, 2 * width});
  largest_ = Tensor(config_.dtype, {steps_ * B_, width});
  layers_.readout.forward(rows_of(slice(ConstView(rows_), 0, 1, 1 + steps_)), saved_readout_,
                          pairs_, context_);
  larger_of_pairs(pairs_, largest_);
  dropout_.forward(largest_, run, saved_readout_dropout_, largest_);
}

void TranslatorPass::read_out_backward(TranslatorGradients& gradients) {
  d_rows_ = Tensor(config_.dtype, rows_.shape());
  dropout_.backward(saved_readout_dropout_, d_largest_, d_largest_);
  larger_of_pairs_backward(d_largest_, pairs_);  // pairs_ become their gradients
  layers_.readout.backward(saved_readout_, pairs_, rows_of(slice(d_rows_, 0, 1, 1 + steps_)),
                           gradients.readout, Write::kOverwrite, context_);
}

// Several rows at a time: logits, loss, and the gradients through the output layer.
TranslationLoss TranslatorPass::predict(TranslatorGradients* gradients) {
  const Index N = steps_ * B_;
  const Index V = config_.target_tokens;
  const Index at_once = std::min(N, logits_at_once(V));
  const std::vector<std::int32_t> targets = by_steps(targets_);
  const CrossEntropy cross_entropy(config_.label_smoothing, Vocabulary::kPadding);
  const PackedLinear output = packed_output_ != nullptr ? PackedLinear(*packed_output_, context_)
                                                        : packed_output(config_, layers_, context_);
  if (gradients != nullptr) d_largest_ = Tensor(config_.dtype, largest_.shape());
  Tensor logits(config_.dtype, {at_once, V});
  Tensor losses(config_.dtype, {2, N});
  Tensor one(config_.dtype, {1});
  with_type(config_.dtype, [&]<class T>() { one.values<T>()[0] = T(1); });
  CrossEntropy::Saved saved;
  for (Index first = 0; first < N; first += at_once) {
    const Index count = std::min(at_once, N - first);
    const ConstView rows = slice(ConstView(largest_), 0, first, first + count);
    const View scores = slice(logits, 0, 0, count);
    const auto some = [&](Index which) {
      return slice(reshape(slice(losses, 0, which, which + 1), {N}), 0, first, first + count);
    };
    output.forward(rows, scores);
    cross_entropy.forward(scores, ConstView(targets.data() + first, {count}), saved,
                          {some(0), some(1)}, context_);
    if (gradients == nullptr) continue;
    cross_entropy.backward(saved, broadcast_to(one, {count}), scores, Write::kOverwrite, context_);
    output.backward(rows, scores, slice(d_largest_, 0, first, first + count),
                    output_weight(config_, *gradients), gradients->output.bias,
                    first == 0 ? Write::kOverwrite : Write::kAccumulate);
  }
  return sum_losses(losses, targets);
}

}  // namespace qkv::app
