// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_
#define QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_

#include <cstdint>
#include <vector>

#include <qkv/app/translator.h>

// The output layer on all target tokens of a batch. They may come from several TranslatorPasses:
// the weight then has one gradient, summed over rows in one fixed order. There are no rows for
// padding.
namespace qkv::app {

class OutputPass {
 public:
  // `targets` are the token ids of all rows, none of them padding. Other arguments must outlive the
  // pass.
  OutputPass(const TranslatorConfig& config, const TranslatorLayers& layers,
             std::vector<std::int32_t> targets, Context& context);

  // Rows of t_i [count, readout_width()], to be written before a loss is computed.
  View rows(Index first, Index count) { return slice(rows_, 0, first, first + count); }
  // Gradients of the rows [count, readout_width()], to be read after loss_and_gradients().
  View d_rows(Index first, Index count) { return slice(d_rows_, 0, first, first + count); }

  TranslationLoss loss();
  // Overwrites the gradients of the output layer's bias and of its weight, which may be tied.
  TranslationLoss loss_and_gradients(TranslatorGradients& gradients);

 private:
  TranslationLoss predict(TranslatorGradients* gradients);
  TranslationLoss sum(const Tensor& losses) const;

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  std::vector<std::int32_t> targets_;
  Context& context_;
  Tensor rows_, d_rows_;  // [targets, readout_width()]
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_OUTPUT_PASS_H_
