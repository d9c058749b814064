// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ATTEND_H_
#define QKV_LAYERS_ATTEND_H_

#include <string_view>
#include <vector>

#include <qkv/attention.h>
#include <qkv/layers/run.h>

// Functions shared by all attention layers: they make the options of a call, and call attention()
// and save its lse.
namespace qkv::layers {

// The dropout of a forward pass: p in training, 0 in evaluation.
Dropout dropout_of(double p, const RunState& run);

// Counts a step in training mode, else does nothing. A layer calls advance() after a successful
// forward pass.
void advance(RunState& run);

Options options_of(const Score& score, const ConstView& lengths, const std::vector<Mask>& masks,
                   const Dropout& dropout);
Options options_of(const Score& score, const LayerInputs& inputs, const Dropout& dropout);

// Gives `tensor` this dtype and shape; a tensor that already has both stays as it is. The contents
// are unspecified otherwise.
void resize(Tensor& tensor, DType dtype, const Dims& shape);

// Calls attention() and saves the log-sum-exp, of shape `lse_shape`, in `lse`, and in outputs.lse
// if requested.
void attend(const Inputs& inputs, const Options& options, Outputs outputs, Tensor& lse,
            const Dims& lse_shape, Context& context);

// Buffers for the gradients of captured arrays, for layers that call attention_backward() with
// Write::kOverwrite. If the layer's own `write` is kAccumulate, they are temporary buffers, which
// give() adds to the caller's buffers; else they are the caller's buffers.
class CapturedBuffers {
 public:
  CapturedBuffers(const std::vector<CapturedGradient>& wanted, Write write);

  // The buffers that attention_backward() overwrites.
  const std::vector<CapturedGradient>& filled() const { return filled_; }
  // Adds the temporary buffers, if any, to the caller's buffers.
  void give() const;

 private:
  std::vector<CapturedGradient> filled_;
  std::vector<Tensor> memory_{};  // the temporary buffers in filled_
  std::vector<View> to_{};        // the caller's buffer of each tensor in memory_
};

// A layer that is one call of attention() with a score and dropout.
struct ScoreLayer {
  std::string_view name;  // of the class
  Score score;
  double dropout = 0;

  void forward(const LayerInputs& inputs, RunState& run, AttentionSaved& saved,
               const Outputs& outputs, Context& context) const;
  // `d_score` has the views into which the parameters' gradients are written.
  void backward(const AttentionSaved& saved, const OutputGradients& output_gradients,
                const LayerInputGradients& input_gradients, const ScoreGradient& d_score,
                Context& context) const;
};

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ATTEND_H_
