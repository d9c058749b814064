// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_FORWARD_CALLS_H_
#define QKV_TESTS_CUDA_FORWARD_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/tensor.h>

#include "tests/attention/random_call.h"

// Random calls that the forward kernels support, how they are compared with the reference, and the
// places where kernels run.
namespace qkv::test {

// The features, separated by ", ", that a thorough run has to draw in dot-product calls of 16 bits.
inline constexpr std::string_view kCoveredOfForward =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, NaN in q, NaN in "
    "k, NaN in v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, "
    "layout negative, layout offset, layout broadcast, -> out, -> lse, -> row_max, -> "
    "entropy, -> column_sums, -> value_sums, -> weights";

// The features that a thorough run has to draw in additive calls, besides
// covered_of(ScoreKind::kAdditive).
inline constexpr std::string_view kCoveredOfAdditive =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, numbers plain, "
    "numbers flat, numbers steep, numbers scores 1e4, numbers scores 1e30, numbers denormal, "
    "numbers ties, numbers one key, numbers v 1e30, NaN in q, NaN in k, NaN in v, infinity in q, "
    "infinity in k, infinity in v, layout permuted, layout sliced, layout negative, layout offset, "
    "layout broadcast, -> out, -> lse, -> row_max";

// The features that a thorough run has to draw in dot-product calls of float32.
inline constexpr std::string_view kCoveredOfFloat =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, NaN in q, NaN in "
    "k, NaN in v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, "
    "layout negative, layout offset, layout broadcast, -> out, -> lse, -> row_max";

// Calls f with each random call of (seed, index) that the kernels support, if only the results that
// they compute are requested. Each function takes one kind of call: dot products of 16-bit types,
// dot products of float32, or additive scores of float32.
void for_each_forward_call(std::uint64_t seed, std::uint64_t index,
                           const std::function<void(const RandomCall&)>& f);
void for_each_float_call(std::uint64_t seed, std::uint64_t index,
                         const std::function<void(const RandomCall&)>& f);
void for_each_additive_call(std::uint64_t seed, std::uint64_t index,
                            const std::function<void(const RandomCall&)>& f);

// Calls run() with buffers for the results that the kernels compute. Returns how the results differ
// from the reference's, the message of an exception, or an empty string.
std::string difference_of_forward(const RandomCall& call, std::string_view path,
                                  const std::function<void(const Outputs&)>& run);

// Where kernels run.
enum class Place { kEmulator, kDevice };
inline std::string name_of(Place place) { return place == Place::kDevice ? "Device" : "Emulator"; }

// Returns why kernels cannot run at a place, or an empty string.
std::string why_not(Place place);

// Returns sequences as a packed array [rows, heads, width]: sequence n is the first
// starts[n+1] - starts[n] rows of batch entry n of x [entries, heads, rows, width].
Tensor packed(const ConstView& x, const std::vector<Index>& starts);

// Computes attention() at a place, of arrays on the host. `seed` chooses the emulator's order of
// threads and copies.
void attention_at(Place place, const Inputs& inputs, const Options& options, const Outputs& outputs,
                  std::uint32_t seed = 1);
// Computes attention_backward() at a place, of arrays on the host.
void backward_at(Place place, const Inputs& inputs, const Options& options, const Saved& saved,
                 const OutputGradients& sources, const InputGradients& gradients,
                 std::uint32_t seed = 1);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_FORWARD_CALLS_H_
