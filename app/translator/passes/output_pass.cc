// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/output_pass.h"

#include <algorithm>
#include <utility>

#include "core/order.h"
#include "core/storage.h"
#include "layers/linear_products.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/values.h"

namespace qkv::app {
namespace {

// The number of rows whose logits [rows,V] are computed at once: many, since they share one read of
// the weight and of its gradient, but at most 2^22 logits if V allows it, to bound the memory. The
// number is a multiple of the block of gradient sums, so that the order of summation is that of all
// rows at once.
Index rows_at_once(Index V) {
  constexpr Index kLogits = Index{1} << 22;
  constexpr Index kMostBlocks = 3;  // 384 rows are also whole tiles of 6 rows
  return std::clamp<Index>(kLogits / V / core::kGradientBlock, 1, kMostBlocks) *
         core::kGradientBlock;
}

}  // namespace

OutputPass::OutputPass(const TranslatorConfig& config, const TranslatorLayers& layers,
                       std::vector<std::int32_t> targets, Context& context)
    : config_(config),
      layers_(layers),
      targets_(std::move(targets)),
      context_(context),
      rows_(config.dtype, {std::ssize(targets_), readout_width(config)}),
      losses_(config.dtype, {2, std::ssize(targets_)}) {}

TranslationLoss OutputPass::loss() {
  predict(Wanted::kLosses, nullptr);
  return sum(losses_);
}

TranslationLoss OutputPass::loss_and_gradients(TranslatorGradients& gradients) {
  predict(Wanted::kAll, &gradients);
  return sum(losses_);
}

const Tensor& OutputPass::losses_and_row_gradients() {
  predict(Wanted::kAllButTokens, nullptr);
  return losses_;
}

// Computes the losses and, if wanted, the gradients, for rows_at_once() rows at a time.
void OutputPass::predict(Wanted wanted, TranslatorGradients* gradients) {
  const auto N = static_cast<Index>(targets_.size());
  const Index V = config_.target_tokens;
  const bool keeps_d_logits = wanted == Wanted::kAllButTokens;
  if (wanted != Wanted::kLosses) d_rows_ = Tensor(config_.dtype, rows_.shape());
  if (keeps_d_logits) d_logits_ = Tensor(config_.dtype, {N, V});
  if (N == 0) return;
  const Index at_once = std::min(N, rows_at_once(V));
  const PackedLinear output = packed_output(config_, layers_, context_);
  const CrossEntropy cross_entropy(config_.label_smoothing);
  Tensor logits;
  if (!keeps_d_logits) logits = Tensor(config_.dtype, {at_once, V});
  CrossEntropy::Saved saved;
  for (Index first = 0; first < N; first += at_once) {
    const Index count = std::min(at_once, N - first);
    const ConstView inputs = rows(first, count);
    const View scores = keeps_d_logits ? slice(d_logits_.view(), 0, first, first + count)
                                       : slice(logits.view(), 0, 0, count);
    const ConstView labels(targets_.data() + first, {count});
    const auto losses = [&](Index which) {
      return slice(reshape(slice(losses_, 0, which, which + 1), {N}), 0, first, first + count);
    };
    output.forward(inputs, scores);
    if (wanted == Wanted::kLosses) {
      cross_entropy.forward(scores, labels, saved, {losses(0), losses(1)}, context_);
      continue;
    }
    cross_entropy.forward_and_backward(scores, labels, {losses(0), losses(1)}, context_);
    if (keeps_d_logits) {
      output.backward_input(scores, d_rows(first, count));
      continue;
    }
    output.backward(inputs, scores, d_rows(first, count), output_weight(config_, *gradients),
                    gradients->output.bias, first == 0 ? Write::kOverwrite : Write::kAccumulate);
  }
}

void OutputPass::token_gradients(TranslatorGradients& gradients, Index first, Index count,
                                 Write write) {
  const auto of_tokens = [&](Tensor& gradient) {
    return gradient.given() ? slice(gradient.view(), 0, first, first + count) : View();
  };
  layers::linear_backward_parameters(
      "OutputPass::token_gradients", rows_, slice(ConstView(d_logits_), 1, first, first + count),
      layers::LinearGradientViews{of_tokens(output_weight(config_, gradients)),
                                  of_tokens(gradients.output.bias)},
      write, context_);
}

TranslationLoss OutputPass::sum(const Tensor& losses) {
  TranslationLoss sums;
  sums.tokens = losses.size(1);
  core::dispatch(losses.dtype(), [&]<class T>() {
    const std::span<const T> values = losses.values<T>();
    const auto count = static_cast<std::size_t>(sums.tokens);
    for (std::size_t n = 0; n < count; ++n) {
      sums.loss += static_cast<double>(values[n]);
      sums.log_probability += static_cast<double>(values[count + n]);
    }
  });
  return sums;
}

}  // namespace qkv::app
