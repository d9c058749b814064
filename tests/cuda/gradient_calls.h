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

// Random backward calls that the gradient kernels support, and how their gradients are compared
// with the reference's.
namespace qkv::test {

// The features, separated by ", ", that a thorough run has to draw in calls of 16 bits.
inline constexpr std::string_view kCoveredOfGradients =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, no v, NaN in q, NaN in k, NaN in v, "
    "infinity in q, infinity in k, infinity in v, NaN in dout, infinity in dout, layout permuted, "
    "layout sliced, layout negative, layout offset, layout broadcast, dout, dlse, asks q, asks k, "
    "asks v, asks bias, asks alibi, asks sinks, added, bfloat16, float16";

// The features that a thorough run has to draw in calls of float32, with dot products and with
// additive scores.
inline constexpr std::string_view kCoveredOfFloatGradients =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, no v, NaN in q, NaN in k, NaN in v, "
    "infinity in q, infinity in k, infinity in v, NaN in dout, infinity in dout, layout permuted, "
    "layout sliced, layout negative, layout offset, layout broadcast, dout, dlse, asks q, asks k, "
    "asks v, added";
// The further features that a thorough run has to draw in calls with additive scores.
inline constexpr std::string_view kAskedOfAdditive = "asks wq, asks wk, asks score_v, asks score_b";

// Calls f(call, random) with each random call of (seed, index) of 16-bit types that the kernels
// support. `call` is `random` without dweights and without the gradients of broadcast biases.
void for_each_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);

// Calls f(call, random) with the random call of (seed, index) if it is of float32 and the kernels
// support it. The first function takes dot products, the second additive scores. `call` is `random`
// without dweights and without the gradients of biases, slopes and sinks.
void for_each_float_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);
void for_each_additive_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f);

// Returns the features of `random` without "asks NAME" for gradients that `call` does not ask for.
std::set<std::string> features_of(const BackwardCall& call, const RandomBackward& random);

// Calls run(saved, gradients). `saved` are out and lse of the reference, or for float32 of the
// kernels at `place`; `gradients` are buffers for the call's gradients. Returns how these differ
// from the reference's gradients, the message of an exception, or an empty string.
std::string difference_of_gradients(
    const BackwardCall& call, const RandomBackward& random, Place place,
    const std::function<void(const Saved&, const InputGradients&)>& run);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_GRADIENT_CALLS_H_
