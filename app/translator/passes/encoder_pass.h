// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_ENCODER_PASS_H_
#define QKV_TRANSLATOR_PASSES_ENCODER_PASS_H_

#include <qkv/app/translator.h>

#include "translator/passes/source_memory.h"
#include "translator/passes/token_batch.h"

namespace qkv::app {

// The encoder's pass on a batch of sources.
class EncoderPass {
 public:
  EncoderPass(const TranslatorConfig& config, const TranslatorLayers& layers, TokenBatch sources,
              Context& context);

  void forward(RunState& run);
  // Runs the forward pass without dropout. backward() must not follow.
  void evaluate(const GruStack::Packed& packed);
  // The backward pass of forward(), from d_states [B,Ts,2 hidden] and d_last [2,B,hidden].
  void backward(const Tensor& d_states, const Tensor& d_last, TranslatorGradients& gradients);

  EncodedSources result() const {
    return {states_, of_last_layer(ConstView(last_)), sources_.lengths};
  }
  // The decoder's first state [1,B,hidden]: tanh(start(last state of the backward direction)).
  void start(const View& state);
  // The backward pass of start(): adds to d_last [2,B,hidden]; d_state [1,B,hidden] is overwritten.
  void start_backward(const ConstView& state, const View& d_state, const View& d_last,
                      TranslatorGradients& gradients);

 private:
  void embed(RunState& run);
  // The last layer's part [2,B,hidden] of the states [2 encoder_layers,B,hidden].
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
  Tensor states_;    // [B,Ts,2 hidden]: both directions of the last layer
  Tensor last_;      // [2 encoder_layers,B,hidden]: the last state of each direction
  Embedding::Saved saved_embedding_;
  DropoutLayer::Saved saved_dropout_;
  GruStack::Saved saved_gru_;
  Linear::Saved saved_start_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_ENCODER_PASS_H_
