// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_GRADIENT_CALLS_H_
#define QKV_TESTS_CUDA_GRADIENT_CALLS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "tests/attention/backward_call.h"
#include "tests/cuda/forward_calls.h"

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

inline constexpr std::string_view kCoveredOfFloatGradients =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, no v, NaN in q, NaN in k, NaN in v, "
    "infinity in q, infinity in k, infinity in v, NaN in dout, infinity in dout, layout permuted, "
    "layout sliced, layout negative, layout offset, layout broadcast, dout, dlse, asks q, asks k, "
    "asks v, added";
inline constexpr std::string_view kAskedOfAdditive = "asks wq, asks wk, asks score_v, asks score_b";

// Calls f(call, random) with each of the random calls of (seed, index), without the gradients
// of weights and of some biases, if the kernels support it then.
void for_each_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);

// As for_each_gradient_call(), of float32, without the gradients of biases, slopes and sinks: with
// product scores, and with additive ones.
void for_each_float_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);
void for_each_additive_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);

// The features of the random call, but for the gradients that the call does not ask.
std::set<std::string> features_of(const BackwardCall& call, const RandomBackward& random);

// Runs the call into buffers of its gradients, from the results that the reference saves, or with
// an additive score those of the kernels at a place. Returns how the gradients differ from the
// reference's, the message of an exception, or an empty string.
std::string difference_of_gradients(
    const BackwardCall& call, const RandomBackward& random, Place place,
    const std::function<void(const Saved&, const InputGradients&)>& run);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_GRADIENT_CALLS_H_
