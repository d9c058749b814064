// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_
#define QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_

#include <optional>
#include <span>
#include <vector>

#include <qkv/app/translator.h>

#include "translator/passes/encoder_pass.h"
#include "translator/passes/source_memory.h"
#include "translator/passes/token_batch.h"

// The pass of a batch of sentence pairs through the translator, forward and backward (Bahdanau et
// al. 2015, appendix A).
namespace qkv::app {

// The pass of sentence pairs with known targets by teacher forcing: the decoder's input is the
// correct previous token. The pass ends at the readout, and its backward pass begins there, since
// the output layer takes the rows of several passes at once (translator/passes/output_pass.h).
class TranslatorPass {
 public:
  // `function` is the name in errors. `decoder`, if given, holds the packed weights of the
  // decoder's cell.
  TranslatorPass(std::string_view function, const TranslatorConfig& config,
                 const TranslatorLayers& layers, std::span<const TokenPair> pairs, Context& context,
                 const GruCell::Steps* decoder = nullptr);

  // The targets without padding, step by step; the readout has one row for each.
  const std::vector<std::int32_t>& targets() const { return live_targets_; }

  // Writes t_i for each of targets(): readout [targets, readout_width()].
  void forward(RunState& run, const View& readout);
  // The backward pass of forward(); uses d_readout as scratch. Overwrites all gradients but those
  // of the output layer. `embedding` says whether the target embedding's gradient is overwritten or
  // added to: with tied embeddings it already holds the output layer's part.
  void backward(const View& d_readout, TranslatorGradients& gradients, Write embedding);

 private:
  void decode(RunState& run);
  void decode_backward(TranslatorGradients& gradients, Write embedding);
  void read_out(RunState& run, const View& largest);
  void read_out_backward(const View& d_largest, TranslatorGradients& gradients);

  bool has_padding() const { return std::ssize(live_) < steps_ * B_; }

  // Parts of rows_ and of d_rows_, [n,B,.].
  View states(Tensor& rows, Index first, Index count) const;
  View seen(Tensor& rows, Index first, Index count) const;
  View embeddings(Tensor& rows) const;
  View inputs(Tensor& rows, Index first, Index count) const;  // seen and embeddings side by side

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  Context& context_;
  const GruCell::Steps* packed_decoder_;
  TokenBatch targets_;
  EncoderPass encoder_;
  std::optional<SourceMemory> memory_;
  std::optional<GruCell::Steps> cell_;
  Index steps_ = 0;  // Tt
  Index B_ = 0;
  DropoutLayer dropout_;

  // Positions step * B + pair that have a target and no padding, ascending.
  std::vector<Index> live_;
  std::vector<std::int32_t> live_targets_;

  // One row for each step and sentence pair: [1+Tt,B,hidden+C+embedding] holds s_i, c_i, E y_{i-1}.
  // Entry 0 holds only s_0. The inputs of the decoder and of the readout are slices of a row.
  Tensor rows_, d_rows_;
  Tensor gates_, d_gates_;  // [Tt,B,4 hidden]
  Tensor live_rows_;        // the readout's input without padding, if there is padding
  Tensor pairs_;            // output of the readout layer [targets, 2 readout_width()]
  Embedding::Saved saved_embedding_;
  DropoutLayer::Saved saved_embedding_dropout_, saved_readout_dropout_;
  Linear::Saved saved_readout_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_
