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

// The keys of one source for queries that arrive step by step: Wk k_j is computed once and used by
// every step (Bahdanau et al. 2015, appendix A.1.2: "U_a h_j does not depend on i"), and so are the
// packed parameters. Results have the bits of attention().
class QKV_API AdditiveMemory {
 public:
  // k [B,G,Tk,Dk], [B,Tk,Dk] or [Tk,Dk] as Inputs::k; there are H query heads if a parameter is
  // given per head, else G. Computes with the arrays as they are now; they and the context must
  // outlive the memory, and must not change until the last key_gradients(). Takes 2 U numbers
  // for each key and head, and U more once there are gradients. Throws Error.
  AdditiveMemory(const ConstView& k, const Additive& score, Context& context);
  ~AdditiveMemory();
  AdditiveMemory(AdditiveMemory&&) noexcept;
  AdditiveMemory& operator=(AdditiveMemory&&) noexcept;

  // As qkv::attention(inputs, options, outputs, context). `inputs.k` and the arrays of
  // `options.score` must be those of the memory; k and Wk are not read again.
  void attention(const Inputs& inputs, const Options& options, const Outputs& outputs);
  // As qkv::attention_backward. `input_gradients` names neither k nor Wk (it may be empty): their
  // gradients are accumulated here, over all calls. A cancelled call may have added a part.
  void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                          const OutputGradients& output_gradients,
                          const InputGradients& input_gradients);
  // dk and dWk, each in the shape and dtype of its source or absent, of all calls of
  // attention_backward() since the last call of this, which resets the sum.
  void key_gradients(const View& dk, const View& dwk, Write write = Write::kOverwrite);

  // The implementation: "additive/avx512"; "reference", used without such a kernel, projects the
  // keys in every call.
  std::string_view path() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv

#endif  // QKV_ADDITIVE_MEMORY_H_
