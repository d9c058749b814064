// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_FORWARD_CALLS_H_
#define QKV_TESTS_CUDA_FORWARD_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tests/attention/random_call.h"

// Random calls that the forward kernels support, their comparison with the reference, and the
// places where kernels run.
namespace qkv::test {

// Features that the random calls with product scores must have, separated by ", ".
inline constexpr std::string_view kCoveredOfForward =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, NaN in q, NaN in "
    "k, NaN in v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, "
    "layout negative, layout offset, layout broadcast, -> out, -> lse, -> row_max, -> "
    "entropy, -> column_sums, -> value_sums, -> weights";

// The features of additive calls that a thorough run has to draw, besides
// covered_of(ScoreKind::kAdditive).
inline constexpr std::string_view kCoveredOfAdditive =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, numbers plain, "
    "numbers flat, numbers steep, numbers scores 1e4, numbers scores 1e30, numbers denormal, "
    "numbers ties, numbers one key, numbers v 1e30, NaN in q, NaN in k, NaN in v, infinity in q, "
    "infinity in k, infinity in v, layout permuted, layout sliced, layout negative, layout offset, "
    "layout broadcast, -> out, -> lse, -> row_max";

inline constexpr std::string_view kCoveredOfFloat =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, NaN in q, NaN in "
    "k, NaN in v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, "
    "layout negative, layout offset, layout broadcast, -> out, -> lse, -> row_max";

// Calls f with each of the random calls of (seed, index) that the kernels support, if only results
// that they have are requested of it: with product scores of 16 bits, with product scores of
// float32, and with additive ones.
void for_each_forward_call(std::uint64_t seed, std::uint64_t index,
                           const std::function<void(const RandomCall&)>& f);
void for_each_float_call(std::uint64_t seed, std::uint64_t index,
                         const std::function<void(const RandomCall&)>& f);
void for_each_additive_call(std::uint64_t seed, std::uint64_t index,
                            const std::function<void(const RandomCall&)>& f);

// Runs the call into buffers of the results that the kernels have. Returns how these differ from
// the reference, the message of an exception, or an empty string.
std::string difference_of_forward(const RandomCall& call, std::string_view path,
                                  const std::function<void(const Outputs&)>& run);

// Where kernels run.
enum class Place { kEmulator, kDevice };
inline std::string name_of(Place place) { return place == Place::kDevice ? "Device" : "Emulator"; }

// Why they cannot run there, or an empty string.
std::string why_not(Place place);

// attention() there, of arrays on the host. `seed` chooses the emulator's order of threads and
// copies.
void attention_at(Place place, const Inputs& inputs, const Options& options, const Outputs& outputs,
                  std::uint32_t seed = 1);
// attention_backward() there, of gradients of q, k and v.
void backward_at(Place place, const Inputs& inputs, const Options& options, const Saved& saved,
                 const OutputGradients& sources, const InputGradients& gradients,
                 std::uint32_t seed = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_FORWARD_CALLS_H_
