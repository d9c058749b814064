// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_SOURCE_MEMORY_H_
#define QKV_TRANSLATOR_PASSES_SOURCE_MEMORY_H_

#include <optional>

#include <qkv/additive_memory.h>
#include <qkv/app/translator.h>

#include "layers/additive_steps.h"

// The keys and values that the decoder attends to, for any kind of attention. Keys are projected
// once for all decoder steps.
namespace qkv::app {

// The encoder's result for B sources.
struct EncodedSources {
  ConstView states{};   // [B,Ts,2 hidden]
  ConstView last{};     // [2,B,hidden]: the last state of each direction
  ConstView lengths{};  // [B] int32: tokens of each source
};

// The width C of a context vector c_i.
Index context_width(const TranslatorConfig& config);

// The number of attention heads; 1 except for kMultiHead.
Index head_count(const TranslatorConfig& config);

class SourceMemory {
 public:
  // config, layers, context and the arrays of `sources` must outlive this object unchanged. `steps`
  // is the number of decoder steps for look(step, ..); 0 if there is no backward pass.
  SourceMemory(const TranslatorConfig& config, const TranslatorLayers& layers,
               const EncodedSources& sources, Index steps, Context& context);

  // Attends with the decoder states s [n,B,hidden]: writes the context vectors `seen` [n,B,C] and,
  // if given, `weights` [B,heads,n,Ts], which kNone leaves unchanged.
  void look(const ConstView& s, const View& seen, const View& weights);

  // Attends in decoder step `step` with s [1,B,hidden], writes `seen` [1,B,C], and saves what
  // look_back() needs. s must not change before finish(), and `seen` not before look_back().
  void look(Index step, const ConstView& s, const View& seen);
  // The backward pass of look(step, ..): adds to ds [1,B,hidden], and accumulates what finish()
  // needs for the gradients of the sources and of the parameters.
  void look_back(Index step, const ConstView& s, const ConstView& seen, const ConstView& d_seen,
                 const View& ds);
  // Ends the backward pass after look_back() of all steps, with the arrays s [steps,B,hidden] and
  // d_seen [steps,B,C] of all steps. Overwrites d_states [B,Ts,2 hidden] and the gradients of the
  // attention's parameters; with kNone adds to d_last [2,B,hidden].
  void finish(const ConstView& s, const ConstView& d_seen, const View& d_states, const View& d_last,
              TranslatorGradients& gradients);

 private:
  // Arrays that the steps store for look_back() and finish().
  struct StepArrays {
    Tensor lse;      // [steps,B,heads]
    Tensor query;    // [steps,B,hidden] projected queries of multi-head attention
    Tensor heads;    // [steps,B,hidden] the heads' outputs
    Tensor d_query;  // [steps,B,hidden] gradient of `query`
    Tensor d_heads;  // [steps,B,hidden] gradient of `heads`
  };

  bool has_no_attention() const { return config_.attention == TranslatorAttention::kNone; }
  void project_keys(Index steps);
  void allocate_gradients();
  void copy_last_states(const View& seen) const;
  void attend(const ConstView& q, const View& out, const View& lse, const View& weights);
  Options options() const;
  Inputs inputs(const ConstView& q) const;
  void finish_projections(const ConstView& s, const ConstView& d_seen, const View& d_states,
                          TranslatorGradients& gradients);

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  EncodedSources sources_;
  Context& context_;
  Tensor projected_keys_;    // [B,Ts,hidden]; only with a layer for keys
  Tensor projected_values_;  // [B,Ts,hidden]; only for multi-head attention
  ConstView keys_, values_;  // the projections, or the encoder's states
  Linear::Saved saved_key_, saved_value_;
  std::optional<AdditiveMemory> additive_;               // for look() without a step
  std::optional<layers::AdditiveSteps> additive_steps_;  // for look() with a step
  std::optional<PackedLinear> query_, merge_;
  StepArrays by_step_;
  Tensor d_keys_, d_values_;  // empty with additive_steps_, which has such arrays itself
  std::optional<BilinearAttention::Parameters> d_bilinear_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_SOURCE_MEMORY_H_
