// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_H_
#define QKV_ATTENTION_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/expression.h>
#include <qkv/options.h>
#include <qkv/outputs.h>
#include <qkv/view.h>

namespace qkv {

// The arrays of one call: q [B,H,Tq,D], k [B,G,Tk,D], v [B,G,Tk,E]. H is a multiple of G, and query
// head h reads key head floor(h*G/H). If all three have rank 3 they are [B,T,.], with rank 2 [T,.].
// With mixed ranks leading axes align from the right as in NumPy: the last leading axis is the head
// axis, and the axes before it broadcast. The dtype is float32, float64, bfloat16 or float16, one
// for all three, or q is float32 and k and v are bfloat16, float16 or q8 (qkv/q8.h). v may be
// absent if neither `out` nor `value_sums` is requested and, backward, the gradient of out is
// absent.
// Packed sequences: cu_seqlens_q and cu_seqlens_k are integers [B+1], non-decreasing from 0 to the
// total. q is [sum Tq,H,D], k and v [sum Tk,G,.], out [sum Tq,H,E]; results that are [..,Tq] or
// [..,Tk] without packing are [H,sum Tq] or [H,sum Tk].
// Paged keys: block_tables holds integers [B,pages of an entry] and context_lens integers [B]. k is
// [pages,page,G,D], v [pages,page,G,E], with `page` a multiple of 16, and q [B,H,Tq,D]. Entry b has
// context_lens[b] keys, its Tk, and key j is row j % page of page block_tables[b][j / page]. Only
// out, lse and row_max can be requested; bias, keep, padding, k_positions and precomputed masks are
// not available.
struct Inputs {
  ConstView q{};
  ConstView k{};
  ConstView v{};
  ConstView cu_seqlens_q{};
  ConstView cu_seqlens_k{};
  ConstView block_tables{};
  ConstView context_lens{};
  std::optional<Shard> shard{};  // not with packed sequences, paged keys or precomputed masks
};

// Returns the shapes of a call's results. Throws Error for inputs that attention() rejects.
QKV_API ResultShapes result_shapes(const Inputs& inputs);

// Computes softmax(scores(q, k)) v as defined in docs/semantics.md. Throws Error before touching
// any output. Without a context the call runs on the calling thread, with scratch memory of its
// own.
QKV_API void attention(const Inputs& inputs, const Options& options, const Outputs& outputs);
QKV_API void attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                       Context& context);

// Merges results for the same queries and different keys: `out` [..,T,E] and `lse` [..,T] become
// those for the keys of both, out = (e^lse out + e^lse2 out2) / (e^lse + e^lse2). `out` and `out2`
// have one dtype, `lse` and `lse2` that of its accumulators. Each merge rounds once. Results merged
// in ascending order of their keys have the same bits on every machine.
QKV_API void merge(const View& out, const View& lse, const ConstView& out2, const ConstView& lse2);

// The state of a softmax over the keys so far, from which calls of later keys continue. For each
// query it has the largest score, the sum of exponentials, and the weighted sum of values, not yet
// divided by the sum of exponentials. All have the dtype of the accumulators. Before the first key
// `max` is -inf, `sum` and `acc` are 0.
struct AttentionState {
  View max{};  // [B,H,Tq]
  View sum{};  // [B,H,Tq]
  View acc{};  // [B,H,Tq,E]; absent without v
};

// Adds the keys of a call to `state`. Of `outputs`, out, lse and row_max may be requested: they are
// the results for all keys so far, sinks included. Steps over consecutive shards, none of them
// empty, give the bits of one call of all keys. Throws Error unless first_key is a multiple of
// kShardKeys, and for packed sequences and paged keys.
QKV_API void attention_step(const Inputs& inputs, const Options& options,
                            const AttentionState& state, const Outputs& outputs);
QKV_API void attention_step(const Inputs& inputs, const Options& options,
                            const AttentionState& state, const Outputs& outputs, Context& context);

// ---- gradients ------------------------------------------------------------------------------

// The results of the forward pass that the backward pass needs; `out` only if the output gradients
// include `out`.
struct Saved {
  ConstView out{};
  ConstView lse{};
};

// Gradients of the loss with respect to the outputs; absent ones are zero.
struct OutputGradients {
  ConstView out{};      // shape and dtype of the result `out`
  ConstView lse{};      // shape and dtype of the result `lse`
  ConstRows weights{};  // gradient of the weights before dropout: all rows or listed ones
};

// Says whether a buffer is overwritten or added to.
enum class Write { kOverwrite, kAccumulate };

// A gradient is requested by setting its buffer, which has the shape and dtype of the input that it
// is the gradient of; axes along which that input was broadcast are summed.
struct InputGradients {
  View q{};
  View k{};
  View v{};
  QkNormGradient qk_norm{};
  ScoreGradient score{};
  View bias{};
  View alibi{};
  View sinks{};
  std::vector<CapturedGradient> captured{};  // of arrays that functions of options.mods read
  Write write = Write::kOverwrite;
};

// Computes the requested gradients (Dao et al. 2022, appendix B.2, extended to every option).
// `options` must be those of the forward call; dropout is regenerated from its seed. For a shard of
// the keys, `saved` are the merged results of all keys: the caller sums the gradient of q over the
// shards, the gradient of sinks is complete in each, and output_gradients.weights must be absent.
QKV_API void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                                const OutputGradients& output_gradients,
                                const InputGradients& input_gradients);
QKV_API void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                                const OutputGradients& output_gradients,
                                const InputGradients& input_gradients, Context& context);

// ---- gradients in steps ---------------------------------------------------------------------

// The gradients of q, k and v summed so far, which a call continues. They have the shapes of q, k
// and v and the accumulators' dtype, are contiguous along the channels, and start from zero.
struct GradientSums {
  View q{};
  View k{};
  View v{};
};

// The results of the forward pass for all keys. `weight_sums` is what add_weight_sums() has added
// up over all keys; if absent, gradients are not corrected for the rounding of lse.
struct SavedOfAll {
  ConstView out{};
  ConstView lse{};
  ConstView weight_sums{};  // [B,H,Tq], float64
};

// Adds the sum of exp(s_j - lse) over the call's keys to `sums` [B,H,Tq] (float64). It does so only
// for queries with |lse| > 16: attention_backward_step() corrects their gradients for the rounding
// of lse. `lse` is that of all keys. The call must be one that attention_backward_step() takes.
QKV_API void add_weight_sums(const Inputs& inputs, const Options& options, const ConstView& lse,
                             const View& sums);
QKV_API void add_weight_sums(const Inputs& inputs, const Options& options, const ConstView& lse,
                             const View& sums, Context& context);

// Continues sums of gradients, for dot products without QK-norm and rotary positions; q, k and v
// are not broadcast. With weight_sums and H = G, steps over consecutive shards, whose first_query
// and first_key are multiples of kShardKeys, give the bits of one call: those of dq if the steps
// ascend in keys, those of dk and dv if they ascend in queries. With H = R G, a shard takes R
// calls: call r = 0 .. R-1 has query heads r, r + R, .. (Shard::first_head = r, head_step = R).
QKV_API void attention_backward_step(const Inputs& inputs, const Options& options,
                                     const SavedOfAll& saved,
                                     const OutputGradients& output_gradients,
                                     const GradientSums& sums);
QKV_API void attention_backward_step(const Inputs& inputs, const Options& options,
                                     const SavedOfAll& saved,
                                     const OutputGradients& output_gradients,
                                     const GradientSums& sums, Context& context);

// ---- bind once, run often -------------------------------------------------------------------

// A problem whose shapes, dtypes and options are fixed. run() and backward() take arrays of those
// shapes and dtypes and do not allocate once the threads of the context have started, unless scores
// or masks are expressions. The first backward() may allocate for inputs with non-contiguous
// channels, for selected rows of dweights, and for gradients that are accumulated or not in C
// order. Views inside the options (bias, lengths, ...) stay bound: their memory is read at every
// run. The context must outlive the plan. run() and backward() of a moved-from plan throw Error;
// its path() and backward_path() are "", and its numbers of bytes 0.
class QKV_API Plan {
 public:
  Plan(const Inputs& inputs, const Options& options, Context& context);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  // The names of the implementations: "dot/avx512", "reference". backward_path() is "" if the
  // problem has no backward pass.
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
