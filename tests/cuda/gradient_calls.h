// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_GRADIENT_CALLS_H_
#define QKV_TESTS_CUDA_GRADIENT_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tests/attention/backward_call.h"

// Random backward calls that the gradient kernels support, and their comparison with the reference.
namespace qkv::test {

// Features that the random calls must have, separated by ", ".
inline constexpr std::string_view kCoveredOfGradients =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, no v, NaN in q, NaN in k, NaN in v, "
    "infinity in q, infinity in k, infinity in v, NaN in dout, infinity in dout, layout permuted, "
    "layout sliced, layout negative, layout offset, layout broadcast, dout, dlse, asks q, asks k, "
    "asks v, asks bias, asks alibi, asks sinks, added, bfloat16, float16";

inline constexpr std::string_view kCoveredOfAdditiveGradients =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, no v, NaN in q, NaN in k, NaN in v, "
    "infinity in q, infinity in k, infinity in v, NaN in dout, infinity in dout, layout permuted, "
    "layout sliced, layout negative, layout offset, layout broadcast, dout, dlse, asks q, asks k, "
    "asks v, asks wq, asks wk, asks score_v, asks score_b, added";

// Calls f(call, random) with each of the random calls of (seed, index), without the gradients
// of weights and of some biases, if the kernels support it then.
void for_each_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);

// The same with additive scores, without the gradients of biases, too.
void for_each_additive_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);

// Runs the call into buffers of its gradients, from the results that the reference saves. Returns
// how the gradients differ from the reference's, the message of an exception, or an empty string.
std::string difference_of_gradients(
    const BackwardCall& call, const RandomBackward& random,
    const std::function<void(const Saved&, const InputGradients&)>& run);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_GRADIENT_CALLS_H_
