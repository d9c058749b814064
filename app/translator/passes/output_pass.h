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

// If several processes share a batch's rows, the rows of each process begin at a multiple of this
// number. Sums over rows are divided only at these multiples, so that their bits do not depend on
// the number of processes.
inline constexpr Index kOutputRows = core::kGradientBlock;

class OutputPass {
 public:
  // `targets` are the token ids of all rows, none of them padding. Other arguments must outlive the
  // pass.
  OutputPass(const TranslatorConfig& config, const TranslatorLayers& layers,
             std::vector<std::int32_t> targets, Context& context);

  // The readouts t_i [count, readout_width()] of the targets first .. first + count - 1, to be
  // written before a loss is computed.
  View rows(Index first, Index count) { return slice(rows_, 0, first, first + count); }
  // The gradients of rows(first, count), to be read after loss_and_gradients() or
  // losses_and_row_gradients().
  View d_rows(Index first, Index count) { return slice(d_rows_, 0, first, first + count); }

  TranslationLoss loss();
  // Overwrites the gradients of the output layer's bias and of output_weight().
  TranslationLoss loss_and_gradients(TranslatorGradients& gradients);

  // Replaces loss_and_gradients() for a pass that has only some of a batch's rows: computes the
  // gradients of these rows, and saves the gradients of the logits for token_gradients(). Returns
  // [2,targets]: the losses with smoothed labels, and the log-probabilities.
  const Tensor& losses_and_row_gradients();
  // After losses_and_row_gradients(): computes the gradients of output_weight() and of the bias for
  // the vocabulary's tokens first .. first + count - 1, summed over this pass's rows. `write` says
  // whether they overwrite `gradients` or are added.
  void token_gradients(TranslatorGradients& gradients, Index first, Index count, Write write);
  // The loss of all rows of a batch, given [2,targets] as losses_and_row_gradients() returns it.
  static TranslationLoss sum(const Tensor& losses);

 private:
  // kAll: as loss_and_gradients(). kAllButTokens: as losses_and_row_gradients().
  enum class Wanted { kLosses, kAll, kAllButTokens };
  void predict(Wanted wanted, TranslatorGradients* gradients);

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  std::vector<std::int32_t> targets_;
  Context& context_;
  Tensor rows_, d_rows_;  // [targets, readout_width()]
  Tensor losses_;         // [2,targets]
  Tensor d_logits_;       // [targets, target_tokens] after losses_and_row_gradients()
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_
