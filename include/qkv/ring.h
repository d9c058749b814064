// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RING_H_
#define QKV_RING_H_

#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/options.h>
#include <qkv/outputs.h>
#include <qkv/ranks.h>

// Attention of one sequence that is divided among ranks (Liu, Zaharia, Abbeel 2023, "Ring attention
// with blockwise transformers"): the softmax continues from one part of the keys to the next, so
// that the order of sums is that of one process.
namespace qkv {

// How the rows of a sequence are divided. Parts begin at multiples of kShardKeys.
struct Sharding {
  // 0: each rank has consecutive rows. n > 0: the sequence is divided into n equal spans, and each
  // span into 2P equal parts, of which rank r of P has parts r and 2P-1-r: all ranks then have
  // equal causal work. The more spans, the less ranks wait for one another in the backward pass.
  Index zigzags = 0;

  friend bool operator==(const Sharding&, const Sharding&) = default;
};
inline constexpr Sharding kContiguous{};
inline constexpr Sharding kZigzag{1};

// Writes `out` and `lse` of this rank's rows; both have the bits of attention() of the whole
// sequence, for any number of ranks. Collective. `inputs` are this rank's rows, q [B,H,t,D], k
// [B,G,t,D] and v [B,G,t,E], not packed, not paged and without a shard; the ranks have equal
// options. Positions in options count in the whole sequence of T rows, and functions read arrays of
// all T rows. Arrays with an axis of queries have this rank's rows, arrays with an axis of keys all
// T keys: bias and keep [..,t,T], padding [B,T]. A rank holds its own rows, two parts of other
// ranks' keys and values, and the copies that it is sending. If a rank fails, all ranks throw:
// before keys are sent if arguments are at fault, else at the end of the call. The lowest rank that
// has an exception, such as Error or Cancelled, throws it, and all others throw OtherRankFailed.
// Results are then unspecified, but the ranks can be used again, except after a message that failed
// (std::runtime_error) or for which there was no memory (std::bad_alloc).
QKV_API void ring_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                            Ranks& ranks, Sharding sharding = kContiguous);
QKV_API void ring_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                            Ranks& ranks, Sharding sharding, Context& context);

// Writes gradients of this rank's rows, given its rows of the results and of their gradients.
// Collective: all ranks request the same gradients. Those of q, k and v have the bits of
// attention_backward() of the whole sequence if the score is a dot product without QK-norm and
// rotary positions. All others are sums of terms of kShardKeys queries and as many keys: they
// differ from those of attention_backward() by rounding, but have the same bits for any number of
// ranks and any sharding. Gradients of parameters, slopes, sinks and arrays that expressions read
// are complete on every rank, as is that of a bias that all queries share; the gradient of any
// other bias has this rank's rows. A gradient that is complete on every rank takes 48 further bytes
// per element. `write` must be Write::kOverwrite.
QKV_API void ring_attention_backward(const Inputs& inputs, const Options& options,
                                     const Saved& saved, const OutputGradients& output_gradients,
                                     const InputGradients& input_gradients, Ranks& ranks,
                                     Sharding sharding = kContiguous);
QKV_API void ring_attention_backward(const Inputs& inputs, const Options& options,
                                     const Saved& saved, const OutputGradients& output_gradients,
                                     const InputGradients& input_gradients, Ranks& ranks,
                                     Sharding sharding, Context& context);

}  // namespace qkv

#endif  // QKV_RING_H_
