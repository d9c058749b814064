// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/output_pass.h"

#include <algorithm>
#include <utility>

#include "core/order.h"
#include "core/storage.h"
#include "translator/passes/output_layer.h"
#include "translator/passes/values.h"

namespace qkv::app {
namespace {

// The number of rows whose logits are computed at once. The weight and its gradient are read once
// for them, so there should be many, but about 2^22 numbers bound the memory of large vocabularies.
// It is a multiple of the block of gradient sums, so that the order of summation is that of all
// rows at once.
Index logits_at_once(Index V) {
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
      rows_(config.dtype, {std::ssize(targets_), readout_width(config)}) {}

TranslationLoss OutputPass::loss() { return predict(nullptr); }

TranslationLoss OutputPass::loss_and_gradients(TranslatorGradients& gradients) {
  d_rows_ = Tensor(config_.dtype, rows_.shape());
  return predict(&gradients);
}

// Computes logits, loss and the layer's gradients for several rows at a time.
TranslationLoss OutputPass::predict(TranslatorGradients* gradients) {
  const auto N = static_cast<Index>(targets_.size());
  if (N == 0) return {};
  const Index V = config_.target_tokens;
  const Index at_once = std::min(N, logits_at_once(V));
  const PackedLinear output = packed_output(config_, layers_, context_);
  const CrossEntropy cross_entropy(config_.label_smoothing);
  Tensor logits(config_.dtype, {at_once, V});
  Tensor losses(config_.dtype, {2, N});  // losses with smoothed labels; log-probabilities
  CrossEntropy::Saved saved;
  for (Index first = 0; first < N; first += at_once) {
    const Index count = std::min(at_once, N - first);
    const ConstView inputs = rows(first, count);
    const View scores = slice(logits, 0, 0, count);
    const ConstView labels(targets_.data() + first, {count});
    const auto some = [&](Index which) {
      return slice(reshape(slice(losses, 0, which, which + 1), {N}), 0, first, first + count);
    };
    output.forward(inputs, scores);
    if (gradients == nullptr) {
      cross_entropy.forward(scores, labels, saved, {some(0), some(1)}, context_);
      continue;
    }
    cross_entropy.forward_and_backward(scores, labels, {some(0), some(1)}, context_);
    output.backward(inputs, scores, d_rows(first, count), output_weight(config_, *gradients),
                    gradients->output.bias, first == 0 ? Write::kOverwrite : Write::kAccumulate);
  }
  return sum(losses);
}

TranslationLoss OutputPass::sum(const Tensor& losses) const {
  TranslationLoss sums;
  sums.tokens = static_cast<Index>(targets_.size());
  core::dispatch(losses.dtype(), [&]<class T>() {
    const std::span<const T> values = losses.values<T>();
    for (std::size_t n = 0; n < targets_.size(); ++n) {
      sums.loss += static_cast<double>(values[n]);
      sums.log_probability += static_cast<double>(values[targets_.size() + n]);
    }
  });
  return sums;
}

}  // namespace qkv::app
