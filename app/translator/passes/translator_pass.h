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

// A pass with teacher forcing: the decoder's input is the correct previous token. The pass ends at
// the readout, and its backward pass begins there, since the output layer takes the rows of several
// passes at once (translator/passes/output_pass.h).
class TranslatorPass {
 public:
  // `function` is the function's name in error messages. `decoder`, if given, holds the packed
  // weights of the decoder's cell. All arguments but `pairs` must outlive the pass.
  TranslatorPass(std::string_view function, const TranslatorConfig& config,
                 const TranslatorLayers& layers, std::span<const TokenPair> pairs, Context& context,
                 const GruCell::Steps* decoder = nullptr);

  // The target tokens without padding, ascending by step, then by sentence pair. The readout has a
  // row for each.
  const std::vector<std::int32_t>& targets() const { return live_targets_; }

  // Writes the readout t_i of each of targets() to `readout` [targets, readout_width()].
  void forward(RunState& run, const View& readout);
  // The backward pass of forward(); uses d_readout as scratch. Overwrites all gradients but those
  // of the output layer; without pairs, sets all gradients to 0. `embedding` says whether the
  // target embedding's gradient is overwritten or added to: with tied embeddings it already holds
  // the output layer's part.
  void backward(const View& d_readout, TranslatorGradients& gradients, Write embedding);

 private:
  void decode(RunState& run);
  void decode_backward(TranslatorGradients& gradients, Write embedding);
  void read_out(RunState& run, const View& largest);
  void read_out_backward(const View& d_largest, TranslatorGradients& gradients);

  bool has_padding() const { return std::ssize(live_) < steps_ * B_; }

  // Views [count,B,.] of entries first .. first + count - 1 of rows_ or d_rows_. embeddings() is of
  // entries 1 .. Tt.
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

  // The positions step * B + pair of the targets that are not padding, ascending.
  std::vector<Index> live_;
  std::vector<std::int32_t> live_targets_;

  // [1+Tt,B,hidden+C+embedding]: entry i holds s_i, c_i, E y_{i-1} of each pair, entry 0 only s_0.
  // The inputs of the decoder and of the readout are slices of these rows.
  Tensor rows_, d_rows_;
  Tensor gates_, d_gates_;  // [Tt,B,4 hidden]: what the decoder's cell saves, and its gradient
  Tensor live_rows_;        // the readout's input without padding, if there is padding
  // [targets, 2 readout_width()]: the readout layer's output, later overwritten by its gradient.
  Tensor maxout_input_;
  Embedding::Saved saved_embedding_;
  DropoutLayer::Saved saved_embedding_dropout_, saved_readout_dropout_;
  Linear::Saved saved_readout_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_
