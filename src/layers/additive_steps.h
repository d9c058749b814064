// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_LAYERS_ADDITIVE_STEPS_H_
#define QKV_LAYERS_ADDITIVE_STEPS_H_

#include <vector>

#include <qkv/export.h>
#include <qkv/layers/linear.h>
#include <qkv/layers/score_layers.h>

#include "kernels/additive_kernels.h"

// Additive attention of a decoder, with one query for each of B sources in a step (Bahdanau et al.
// 2015, appendix A.1.2), forward and backward:
//   p = Wq s        e_j = v . tanh(p + Wk k_j)        w = softmax(e)        out = sum_j w_j value_j
// The projections of the keys are computed once. The backward pass of a step completes only the
// gradient of s, which the backward pass of the previous step needs. For the other gradients it
// stores factors, from which finish() computes the sums over all steps. Results equal those of
// AdditiveMemory up to rounding. With AdditiveMemory instead, `qkv train` takes 1.7 times as long
// with 64 units and 1.2 times with 256 (CPU seconds, one thread, sentences of Tatoeba).
namespace qkv::layers {

// The arrays of a batch of source sequences. Rows have contiguous channels and the layer's dtype,
// float32 or float64; callers check that.
struct StepSources {
  ConstView keys{};     // [B,Ts,Dk]
  ConstView values{};   // [B,Ts,E]
  ConstView lengths{};  // [B] int32 in 0..Ts: keys and values from row lengths_b on have no effect
};

class QKV_API AdditiveSteps {
 public:
  // All arguments must outlive the object unchanged. The index of each step must be below `steps`.
  AdditiveSteps(const AdditiveAttention& layer, const StepSources& sources, Index steps,
                Context& context);

  // Computes out [1,B,E] of one step from s [1,B,Dq].
  void attend(Index step, const ConstView& s, const View& out);
  // Computes the backward pass of one step, once: adds to ds [1,B,Dq] from d_out [1,B,E].
  void undo(Index step, const ConstView& d_out, const View& ds);

  // The arrays of all steps: s [steps,B,Dq] as given to attend(), and d_out [steps,B,E] as given to
  // undo().
  struct AllSteps {
    ConstView s{};
    ConstView d_out{};
  };
  // Completes the gradients, once, after all steps: overwrites d_values [B,Ts,E] and the
  // parameters' gradients, and adds to d_keys [B,Ts,Dk], which may be the array d_values.
  void finish(const AllSteps& all, const View& d_values, const View& d_keys,
              AdditiveAttention::Parameters& gradients);

 private:
  template <class T>
  struct Arrays;

  DType dtype() const { return v_.dtype(); }
  void project_keys();
  void allocate_gradients();
  void value_gradients(const ConstView& d_out, const View& d_values);
  void make_key_gradients(Tensor& d_projected, const View& d_v);

  const AdditiveAttention::Parameters& parameters_;
  StepSources sources_;
  Context& context_;
  Index B_ = 0;
  Index Ts_ = 0;
  Index units_ = 0;   // U rounded up to whole columns of kUnitLanes; v_ is 0 from unit U on
  Index padded_ = 0;  // Ts rounded up to whole panels of kPanel
  std::vector<Index> lengths_;
  Tensor no_bias_;  // absent
  PackedLinear query_;
  Tensor v_;  // [units]
  // The exponentials of projected rows (kernels/additive_kernels.h): x and power.
  Tensor panels_;   // [B,padded/kPanel,2 units,kPanel]: keys, for scores
  Tensor columns_;  // [2,B,units/kUnitLanes,Ts,kUnitLanes]: for gradients
  std::vector<kernels::ExponentialForm> forms_;  // [B]: the most general form of a source's keys
  // Data of each step.
  Tensor queries_;                                     // [steps,B,2 units]: exponentials of p
  std::vector<kernels::ExponentialForm> query_forms_;  // [steps,B]
  Tensor weights_;                                     // [steps,B,padded]
  Tensor d_projected_;                                 // [steps,B,U]: the gradient of p
  // Sums over the steps computed backward; d_columns_ lacks the factor v.
  Tensor d_columns_;  // [B,units/kUnitLanes,Ts,kUnitLanes]
  Tensor d_v_;        // [B,units]
  // Scratch memory of one step.
  Tensor projected_;  // [1,B,units]
  Tensor d_scores_;   // [B,padded]
  Tensor d_left_;     // [B,units]
};

}  // namespace qkv::layers

#endif  // QKV_LAYERS_ADDITIVE_STEPS_H_
