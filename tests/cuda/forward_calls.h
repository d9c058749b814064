// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_FORWARD_CALLS_H_
#define QKV_TESTS_CUDA_FORWARD_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tests/attention/random_call.h"

// Random calls that the forward kernels support, and their comparison with the reference.
namespace qkv::test {

// Features that the random calls must have, separated by ", ".
inline constexpr std::string_view kCoveredOfForward =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, NaN in q, NaN in "
    "k, NaN in v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, "
    "layout negative, layout offset, layout broadcast, -> out, -> lse, -> row_max, -> "
    "entropy, -> column_sums, -> value_sums, -> weights";

// Calls f with each of the random calls of (seed, index) that the kernels support, if only results
// that they have are requested of it.
void for_each_forward_call(std::uint64_t seed, std::uint64_t index,
                           const std::function<void(const RandomCall&)>& f);

// Runs the call into buffers of the results that the kernels have. Returns how these differ from
// the reference, the message of an exception, or an empty string.
std::string difference_of_forward(const RandomCall& call, std::string_view path,
                                  const std::function<void(const Outputs&)>& run);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_FORWARD_CALLS_H_
