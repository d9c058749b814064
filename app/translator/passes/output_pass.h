// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_
#define QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_

#include <cstdint>
#include <vector>

#include <qkv/app/translator.h>

#include "core/order.h"

// The output layer on all target tokens of a batch. They may come from several TranslatorPasses:
// the weight then has one gradient, summed over rows in one fixed order. There are no rows for
// padding.
namespace qkv::app {

// The rows of each process begin at a multiple of this number if several processes share them. Sums
// over rows are divided only there, and thus do not depend on the number of processes.
inline constexpr Index kOutputRows = core::kGradientBlock;

class OutputPass {
 public:
  // `targets` are the token ids of all rows, none of them padding. Other arguments must outlive the
  // pass.
  OutputPass(const TranslatorConfig& config, const TranslatorLayers& layers,
             std::vector<std::int32_t> targets, Context& context);

  // Rows of the readout t_i [count, readout_width()], to be written before a loss is computed.
  View rows(Index first, Index count) { return slice(rows_, 0, first, first + count); }
  // Gradients of the rows [count, readout_width()], to be read after loss_and_gradients() or
  // losses_and_row_gradients().
  View d_rows(Index first, Index count) { return slice(d_rows_, 0, first, first + count); }

  TranslationLoss loss();
  // Overwrites the gradients of the output layer's bias and of its weight, which may be tied.
  TranslationLoss loss_and_gradients(TranslatorGradients& gradients);

  // Takes the place of loss_and_gradients() for a pass that has only some of a batch's rows:
  // computes the gradients of these rows, and keeps those of the logits for token_gradients().
  // Returns [2,targets]: the losses with smoothed labels, and the log-probabilities.
  const Tensor& losses_and_row_gradients();
  // After losses_and_row_gradients(): adds the rows' part to the layer's gradients for the tokens
  // first .. first + count - 1, or overwrites these gradients.
  void token_gradients(TranslatorGradients& gradients, Index first, Index count, Write write);
  // The loss, given the losses of all rows [2,targets] in order.
  static TranslationLoss sum(const Tensor& losses);

 private:
  enum class Wanted { kLosses, kAll, kAllButTokens };
  void predict(Wanted wanted, TranslatorGradients* gradients);

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  std::vector<std::int32_t> targets_;
  Context& context_;
  Tensor rows_, d_rows_;  // [targets, readout_width()]
  Tensor losses_;         // [2,targets]
  Tensor d_logits_;       // [targets, tokens] after losses_and_row_gradients()
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_
