// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_SOURCE_MEMORY_H_
#define QKV_TRANSLATOR_PASSES_SOURCE_MEMORY_H_

#include <optional>

#include <qkv/additive_memory.h>
#include <qkv/app/translator.h>

#include "layers/additive_steps.h"

// What the decoder attends to, for any attention: keys are projected once for all looks.
namespace qkv::app {

// The encoder's result for B sources.
struct EncodedSources {
  ConstView states{};   // [B,Ts,2 hidden]
  ConstView last{};     // [2,B,hidden]: of each direction
  ConstView lengths{};  // [B] int32
};

// The width C of what the decoder sees.
Index context_width(const TranslatorConfig& config);

// Heads of a look, as in weights [B,heads,n,Ts].
Index head_count(const TranslatorConfig& config);

class SourceMemory {
 public:
  // All arguments must outlive the memory unchanged. `steps`: of the numbered looks below.
  SourceMemory(const TranslatorConfig& config, const TranslatorLayers& layers,
               const EncodedSources& sources, Index steps, Context& context);

  // s [n,B,hidden] -> seen [n,B,C]. `weights` [B,heads,n,Ts] may be absent; not filled for kNone.
  void look(const ConstView& s, const View& seen, const View& weights);

  // Look number `step`, n = 1, which can be undone: s and seen must not change until then.
  void look(Index step, const ConstView& s, const View& seen);
  // Undoes it: adds to ds [1,B,hidden]. Gradients of the sources and of the
  // parameters are accumulated.
  void look_back(Index step, const ConstView& s, const ConstView& seen, const ConstView& d_seen,
                 const View& ds);
  // After all looks have been undone; s, d_seen [steps,B,.] are those of all. Overwrites d_states
  // [B,Ts,2 hidden] and the attention's gradients, adds to d_last [2,B,hidden].
  void finish(const ConstView& s, const ConstView& d_seen, const View& d_states, const View& d_last,
              TranslatorGradients& gradients);

 private:
  // Saved for undoing looks.
  struct Kept {
    Tensor lse;      // [steps,B,heads]
    Tensor query;    // [steps,B,hidden] projected, with heads
    Tensor heads;    // [steps,B,hidden] the heads' outputs
    Tensor d_query;  // gradients of both
    Tensor d_heads;
  };

  bool none() const { return config_.attention == TranslatorAttention::kNone; }
  void project_keys(Index steps);
  void begin_undoing();
  void see_last(const View& seen) const;
  void attend(const ConstView& q, const View& out, const View& lse, const View& weights);
  Options options() const;
  Inputs inputs(const ConstView& q) const;
  void finish_projections(const ConstView& s, const ConstView& d_seen, const View& d_states,
                          TranslatorGradients& gradients);

  const TranslatorConfig& config_;
  const TranslatorLayers& layers_;
  EncodedSources sources_;
  Context& context_;
  Tensor projected_keys_;    // [B,Ts,hidden]
  Tensor projected_values_;  // the same, with heads
  ConstView keys_, values_;  // these or the states
  Linear::Saved saved_key_, saved_value_;
  std::optional<AdditiveMemory> additive_;               // of looks without a number
  std::optional<layers::AdditiveSteps> additive_steps_;  // of numbered ones
  std::optional<PackedLinear> query_, merge_;
  Kept kept_;
  Tensor d_keys_, d_values_;  // not with additive_steps_, which keeps them
  std::optional<BilinearAttention::Parameters> d_bilinear_;
};

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_SOURCE_MEMORY_H_
