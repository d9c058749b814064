// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_RUN_H_
#define QKV_LAYERS_RUN_H_

#include <cstdint>
#include <vector>

#include <qkv/attention.h>
#include <qkv/export.h>
#include <qkv/options.h>
#include <qkv/tensor.h>

namespace qkv {

enum class Mode { kEvaluate, kTrain };

// Where a run of forward passes stands. In training each forward pass takes one step: its dropout
// is drawn from (seed, step), and `step` goes up by one when the pass has succeeded. In evaluation
// there is no dropout and nothing changes. One RunState may serve all layers of a model.
struct RunState {
  Mode mode = Mode::kEvaluate;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

// The seed that a training step gives to Options::dropout: words 0 and 1 (low, high) of
// Philox4x32-10 with key = seed (low, high) and counter = (step low, step high, 0, 2).
// (The last word keeps these numbers apart from those of initialise(), which have 1 there.)
QKV_API std::uint64_t dropout_seed(const RunState& run) noexcept;

// What an attention layer reads: arrays as Inputs has them, with shapes and ranks as each layer
// says, and masks, which hold together.
struct LayerInputs {
  ConstView q{};
  ConstView k{};
  ConstView v{};
  ConstView lengths{};        // [B] or [B,Tq]: a key j is seen when j < length ("valid_len")
  std::vector<Mask> masks{};  // further masks: Causal, Padding, Keep, ...
  ConstView bias{};           // added to the scores, as Options::bias
  Diagonal diagonal{};        // of Causal and Window
};

// Name a buffer to ask for a gradient; each has the shape and dtype of its input. `write` holds
// for these and for the parameters' gradients.
struct LayerInputGradients {
  View q{};
  View k{};
  View v{};
  Write write = Write::kOverwrite;
  View bias{};
};

// What the forward pass of a layer without projections leaves for the backward pass. The views
// are the caller's: inputs, masks and `out` must stay as they were until then. May be used again
// for another forward pass; memory is kept when sizes are the same.
struct AttentionSaved {
  LayerInputs inputs{};
  ConstView out{};
  Tensor lse{};
  Dropout dropout{};  // as this pass drew it
};

}  // namespace qkv

#endif  // QKV_LAYERS_RUN_H_
