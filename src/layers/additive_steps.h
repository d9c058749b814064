// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ADDITIVE_STEPS_H_
#define QKV_LAYERS_ADDITIVE_STEPS_H_

#include <vector>

#include <qkv/export.h>
#include <qkv/layers/linear.h>
#include <qkv/layers/score_layers.h>

#include "kernels/additive_kernels.h"

// Additive attention of a decoder, one query for each of B sources in a step (Bahdanau et al. 2015,
// appendix A.1.2), forward and backward:
//   p = Wq s        e_j = v . tanh(p + Wk k_j)        w = softmax(e)        out = sum_j w_j value_j
// What a step needs of the keys is made once. In a backward step only the gradient of s is
// complete, because the steps before need it; of everything else a step keeps its factor, and the
// products over all steps follow at the end. The same results as AdditiveMemory's, but for bits.
namespace qkv::layers {

// Rows with contiguous channels, float32 or float64 as the layer; the checks are the caller's.
struct StepSources {
  ConstView keys{};     // [B,Ts,Dk]
  ConstView values{};   // [B,Ts,E]
  ConstView lengths{};  // [B] int32 in 0..Ts: what follows is never read
};

class QKV_API AdditiveSteps {
 public:
  // All arguments must outlive the object unchanged. `steps` steps can be undone.
  AdditiveSteps(const AdditiveAttention& layer, const StepSources& sources, Index steps,
                Context& context);

  // s [1,B,Dq] -> out [1,B,E].
  void attend(Index step, const ConstView& s, const View& out);
  // Undoes it, once: d_out [1,B,E] -> adds to ds [1,B,Dq].
  void undo(Index step, const ConstView& d_out, const View& ds);

  // Of all steps: s [steps,B,Dq], d_out [steps,B,E], as they were undone.
  struct AllSteps {
    ConstView s{};
    ConstView d_out{};
  };
  // Once, after all steps: overwrites d_values [B,Ts,E] and the parameters' gradients, adds to
  // d_keys [B,Ts,Dk], which may be the same array.
  void finish(const AllSteps& all, const View& d_values, const View& d_keys,
              AdditiveAttention::Parameters& gradients);

 private:
  template <class T>
  struct Arrays;

  DType dtype() const { return v_.dtype(); }
  void project_keys();
  void begin_undoing();
  void value_gradients(const ConstView& d_out, const View& d_values);
  void make_key_gradients(Tensor& d_projected, const View& d_v);

  const AdditiveAttention::Parameters& parameters_;
  StepSources sources_;
  Context& context_;
  Index B_ = 0;
  Index Ts_ = 0;
  Index units_ = 0;   // U in whole columns of kUnitLanes: the units that follow have v = 0
  Index padded_ = 0;  // Ts in whole panels of kPanel
  std::vector<Index> lengths_;
  Tensor no_bias_;  // absent
  PackedLinear query_;
  Tensor v_;  // [units]
  // Exponentials of projected rows (kernels/additive_kernels.h): x and power.
  Tensor panels_;                       // [B,padded/kPanel,2 units,kPanel]: keys, for scores
  Tensor columns_;                      // [2,B,units/kUnitLanes,Ts,kUnitLanes]: for gradients
  std::vector<kernels::Range> ranges_;  // [B]: the highest of a source's keys
  // Kept of each step.
  Tensor queries_;                            // [steps,B,2 units]
  std::vector<kernels::Range> query_ranges_;  // [steps,B]
  Tensor weights_;                            // [steps,B,padded]
  Tensor d_projected_;                        // [steps,B,U]: the gradient of p
  // Sums over the steps that were undone, before v is multiplied.
  Tensor d_columns_;  // [B,units/kUnitLanes,Ts,kUnitLanes]
  Tensor d_v_;        // [B,units]
  // Of one step.
  Tensor projected_;  // [1,B,units]
  Tensor d_scores_;   // [B,padded]
  Tensor d_left_;     // [B,units]
};

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ADDITIVE_STEPS_H_
