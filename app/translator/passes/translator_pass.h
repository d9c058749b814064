// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_
#define QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_

#include <optional>
#include <span>
#include <vector>

#include <qkv/app/translator.h>

#include "translator/passes/source_memory.h"
#include "translator/passes/token_batch.h"

// A batch of pairs through the translator, forward and backward (Bahdanau et al. 2015, appendix A).
namespace qkv::app {

// The encoder on a batch of sources.
class EncoderPass {
 public:
  EncoderPass(const TranslatorConfig& config, const TranslatorLayers& layers, TokenBatch sources,
              Context& context);

  void forward(RunState& run);
  // Without dropout, where no backward pass follows: keeps nothing for one.
  void evaluate(const GruStack::Packed& packed);
  // Undoes forward(): d_states [B,Ts,2 hidden], d_last [2,B,hidden].
  void backward(const Tensor& d_states, const Tensor& d_last, TranslatorGradients& gradients);

  EncodedSources result() const {
    return {states_, of_last_layer(ConstView(last_)), sources_.lengths};
  }
  // The decoder's first state [1,B,hidden]: tanh(start(last of the backward direction)).
  void start(const View& state);
  // Undoes it: overwrites `d_state` as scratch, adds to d_last.
  void start_backward(const ConstView& state, const View& d_state, const View& d_last,
                      TranslatorGradients& gradients);

 private:
  void embed(RunState& run);
  // Of states [2 layers,B,hidden]: [2,B,hidden].
  template <class AnyView>
  AnyView of_last_layer(const AnyView& states) const {
    return slice(states, 0, states.size(0) - 2, states.size(0));
  }

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  TokenBatch sources_;
  Context& context_;
  DropoutLayer dropout_;
  Tensor embedded_;  // [B,Ts,embedding]
  Tensor states_;    // [B,Ts,2 hidden] of the last layer
  Tensor last_;      // [2 layers,B,hidden]
  Embedding::Saved saved_embedding_;
  DropoutLayer::Saved saved_dropout_;
  GruStack::Saved saved_gru_;
  Linear::Saved saved_start_;
};

// Pairs with known targets: teacher forcing, the decoder's input is the correct previous token. The
// pass ends at the readout, and its backward pass begins there: the output layer takes the rows of
// several passes at once (models/output_pass.h).
class TranslatorPass {
 public:
  // `function` is the name in errors. `decoder`, if given, has packed the layers' cell.
  TranslatorPass(std::string_view function, const TranslatorConfig& config,
                 const TranslatorLayers& layers, std::span<const TokenPair> pairs, Context& context,
                 const GruCell::Steps* decoder = nullptr);

  // The targets without padding, step by step; a row of the readout for each.
  const std::vector<std::int32_t>& targets() const { return live_targets_; }

  // t_i for each of targets(): readout [targets, readout_width()].
  void forward(RunState& run, const View& readout);
  // Undoes it, after forward(); d_readout serves as scratch. Overwrites all
  // gradients but those of the output layer; adds to the target embedding's if `embedding` says so,
  // as where that holds the output layer's part of a tied weight.
  void backward(const View& d_readout, TranslatorGradients& gradients, Write embedding);

 private:
  void decode(RunState& run);
  void decode_backward(TranslatorGradients& gradients, Write embedding);
  void read_out(RunState& run, const View& largest);
  void read_out_backward(const View& d_largest, TranslatorGradients& gradients);

  bool has_padding() const { return std::ssize(live_) < steps_ * B_; }

  // Parts of rows_ and of their gradients, [n,B,.].
  View states(Tensor& rows, Index first, Index count) const;
  View seen(Tensor& rows, Index first, Index count) const;
  View embeddings(Tensor& rows) const;
  View inputs(Tensor& rows, Index first, Index count) const;  // seen and embeddings

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

  // Where there is a target rather than padding: step * B + pair, ascending.
  std::vector<Index> live_;
  std::vector<std::int32_t> live_targets_;

  // One row for each step and pair: [1+Tt,B,hidden+C+embedding] holds s_i, c_i, E y_{i-1}. Row 0
  // has only s_0. The inputs of the decoder and of the readout are slices of a row.
  Tensor rows_, d_rows_;
  Tensor gates_, d_gates_;  // [Tt,B,4 hidden]
  Tensor live_rows_;        // of the live ones, if there is padding: what the readout sees
  Tensor pairs_;            // [targets,2 readout_width()]: the readout
  Embedding::Saved saved_embedding_;
  DropoutLayer::Saved saved_embedding_dropout_, saved_readout_dropout_;
  Linear::Saved saved_readout_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_TRANSLATOR_PASS_H_
