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

// The state of a run of forward passes. In training each forward pass takes one step: its dropout
// is drawn from (seed, step), and `step` is incremented if the pass succeeds. In evaluation there
// is no dropout and the state does not change. One RunState may serve all layers of a model.
struct RunState {
  Mode mode = Mode::kEvaluate;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

// The seed that a training step passes to Options::dropout: words 0 and 1 (low, high) of
// Philox4x32-10 with key = seed (low, high) and counter = (step low, step high, 0, 2).
// (The last word separates these numbers from those of initialise(), which have 1 there.)
QKV_API std::uint64_t dropout_seed(const RunState& run) noexcept;

// The inputs of an attention layer: arrays as in Inputs, with the shapes and ranks that each layer
// states, and masks. A query attends to a key if all masks and `lengths` allow the pair.
struct LayerInputs {
  ConstView q{};
  ConstView k{};
  ConstView v{};
  ConstView lengths{};           // [B] or [B,Tq]: keys j < length may be attended to ("valid_len")
  std::vector<Mask> masks{};     // further masks: Causal, Padding, Keep, ...
  ConstView bias{};              // added to the scores, as Options::bias
  Diagonal diagonal{};           // used by Causal and Window
  std::vector<ScoreMod> mods{};  // applied in order, as Options::mods
};

// The buffers of the inputs' gradients. A gradient is requested by setting its buffer, which has
// the shape and dtype of the input. `write` also applies to the parameters' gradients.
struct LayerInputGradients {
  View q{};
  View k{};
  View v{};
  Write write = Write::kOverwrite;
  View bias{};
  std::vector<CapturedGradient> captured{};  // of arrays that functions in `mods` read
};

// The state that a layer without projections saves in the forward pass for the backward pass. The
// views refer to the caller's arrays: inputs, masks and `out` must not change until the backward
// pass is done. An AttentionSaved can be used for another forward pass; its memory is reused if
// sizes are equal.
struct AttentionSaved {
  LayerInputs inputs{};
  ConstView out{};
  Tensor lse{};
  Dropout dropout{};  // as drawn by the forward pass
};

}  // namespace qkv

#endif  // QKV_LAYERS_RUN_H_
