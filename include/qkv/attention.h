// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_H_
#define QKV_ATTENTION_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <variant>

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/options.h>
#include <qkv/outputs.h>
#include <qkv/view.h>

namespace qkv {

// q [B,H,Tq,D], k [B,G,Tk,D], v [B,G,Tk,E]; H % G == 0, query head h reads key head floor(h*G/H).
// If all have rank 3: [B,T,.]; rank 2: [T,.]. With mixed ranks leading axes align from the
// right as in NumPy; the last leading one is the head axis, those before it broadcast.
// float32, float64, bfloat16 or float16, the same for all three; or float32 q with bfloat16 or
// float16 k and v. v may be absent if neither `out` nor a gradient is requested.
// Packed: with cu_seqlens (integers [B+1], non-decreasing from 0 to the total) q is [sum Tq,H,D],
// k and v [sum Tk,G,.], out [sum Tq,H,E], and results that are otherwise [..,Tq] or [..,Tk] are
// [H,sum Tq], [H,sum Tk].
// In pages: with block_tables (integers [B,pages of an entry]) and context_lens (integers [B]) k is
// [pages,page,G,D], v [pages,page,G,E], page a multiple of 16, q [B,H,Tq,D]. Key j of entry b is
// row j % page of page block_tables[b][j / page]; entry b has context_lens[b] keys, its Tk. Results
// are out, lse and row_max; bias, keep, padding and k_positions are not available.
struct Inputs {
  ConstView q{};
  ConstView k{};
  ConstView v{};
  ConstView cu_seqlens_q{};
  ConstView cu_seqlens_k{};
  ConstView block_tables{};
  ConstView context_lens{};
};

// The shapes of a call's results. Throws Error for inputs that attention() rejects.
QKV_API ResultShapes result_shapes(const Inputs& inputs);

// softmax(scores(q, k)) v as defined in docs/semantics.md. Throws Error before touching any output.
// Without a context: on the calling thread, with its own scratch memory.
QKV_API void attention(const Inputs& inputs, const Options& options, const Outputs& outputs);
QKV_API void attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                       Context& context);

// ---- gradients ------------------------------------------------------------------------------

// What the backward pass needs from the forward pass (out only if the output gradients include
// `out`).
struct Saved {
  ConstView out{};
  ConstView lse{};
};

// Gradients of the loss with respect to the outputs; absent ones are zero.
struct OutputGradients {
  ConstView out{};      // shape and dtype of out
  ConstView lse{};      // of lse
  ConstRows weights{};  // of weights (before dropout), all or listed rows
};

// Whether a buffer is overwritten or added to.
enum class Write { kOverwrite, kAccumulate };

// Set a buffer to request a gradient. Each has the shape and dtype of its source, summed over
// broadcast axes.
struct InputGradients {
  View q{};
  View k{};
  View v{};
  QkNormGradient qk_norm{};
  ScoreGradient score{};
  View bias{};
  View alibi{};
  View sinks{};
  Write write = Write::kOverwrite;
};

// Dao et al. 2022, appendix B.2, extended to every option. `options` must be those of the forward
// call; dropout is regenerated from its seed.
QKV_API void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                                const OutputGradients& output_gradients,
                                const InputGradients& input_gradients);
QKV_API void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                                const OutputGradients& output_gradients,
                                const InputGradients& input_gradients, Context& context);

// ---- bind once, run often -------------------------------------------------------------------

// A problem with fixed shapes, dtypes and options. run() and backward() take arrays of the same
// shapes and dtypes and do not allocate once the threads of the context have started; backward()
// may, the first time, for inputs with non-contiguous channels, selected rows of dweights, and
// gradients that are accumulated or not in C order. Views inside the options (bias, lengths, ...)
// stay bound: their memory is read at every run. The context must outlive the plan.
class QKV_API Plan {
 public:
  Plan(const Inputs& inputs, const Options& options, Context& context);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  // The implementations: "dot/avx512", "reference". Without a backward pass: "".
  std::string_view path() const noexcept;
  std::string_view backward_path() const noexcept;
  std::size_t scratch_bytes() const noexcept;  // required by run()
  std::size_t backward_scratch_bytes() const noexcept;
  void run(const Inputs& inputs, const Outputs& outputs);
  void backward(const Inputs& inputs, const Saved& saved, const OutputGradients& output_gradients,
                const InputGradients& input_gradients);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv

#endif  // QKV_ATTENTION_H_
