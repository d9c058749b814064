// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ADDITIVE_MEMORY_H_
#define QKV_ADDITIVE_MEMORY_H_

#include <memory>
#include <string_view>

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/options.h>
#include <qkv/view.h>

namespace qkv {

// The projected keys of one source sequence, for an additive score whose queries arrive step by
// step. Each Wk k_j is computed once and used by every step (Bahdanau et al. 2015, appendix A.1.2:
// "U_a h_j does not depend on i"); the packed parameters are reused too. Results are bit-identical
// to attention(). A moved-from memory may only be assigned to or destroyed.
class QKV_API AdditiveMemory {
 public:
  // `k` is [B,G,Tk,Dk], [B,Tk,Dk] or [Tk,Dk], as Inputs::k. The number of query heads is that of a
  // parameter given per head, else G. Later calls read the arrays again: the arrays and the context
  // must outlive the memory, and the arrays must not change until the last key_gradients(). For
  // each key in each query head, the memory takes 2 U numbers, and U more from the first
  // attention_backward() on. Throws Error.
  AdditiveMemory(const ConstView& k, const Additive& score, Context& context);
  ~AdditiveMemory();
  AdditiveMemory(AdditiveMemory&&) noexcept;
  AdditiveMemory& operator=(AdditiveMemory&&) noexcept;

  // Computes qkv::attention(inputs, options, outputs, context). `inputs.k` and the arrays of
  // `options.score` must be those of the memory.
  void attention(const Inputs& inputs, const Options& options, const Outputs& outputs);
  // Computes qkv::attention_backward. `input_gradients` must not request k or Wk (it may be empty):
  // their gradients are accumulated in this object over all calls. A cancelled call may have added
  // a part of its gradients.
  void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                          const OutputGradients& output_gradients,
                          const InputGradients& input_gradients);
  // Writes dk and dWk, summed over the calls of attention_backward() since the previous
  // key_gradients(), and resets the sums. Each has the shape and dtype of its source, or is absent.
  void key_gradients(const View& dk, const View& dwk, Write write = Write::kOverwrite);

  // The name of the implementation: "additive/avx512", or "reference" if the build or the CPU has
  // no such kernel. "reference" projects the keys in every call.
  std::string_view path() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv

#endif  // QKV_ADDITIVE_MEMORY_H_
