// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_ADDITIVE_LAUNCH_H_
#define QKV_CUDA_ADDITIVE_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/additive_arguments.h"
#include "cuda/forward_launch.h"

// The forward kernels of the additive score (device/additive.h): what they support, and which of
// them run a call.
namespace qkv::cuda {

// The kernels of a call in their order: projections of q and k, then attention. All take the same
// arguments, in which set_projections() sets the addresses of the projections.
struct AdditiveLaunches {
  AdditiveArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::int64_t left_count = 0;  // numbers in the projection of q
  std::size_t projection_bytes = 0;
};

// Returns the arguments without the addresses of projections and the numbers of row and key blocks,
// which the caller sets. With `key_per_head`, keys are projected for each query head even if all
// heads share Wk.
AdditiveArguments additive_arguments(const core::Problem& p, const core::Results& results,
                                     bool key_per_head = false);

// How many float32 numbers a projection has, and how many blocks compute it.
std::int64_t float_count(const core::Problem& p, const AdditiveArguments& a, const Projections& x);
std::int64_t projecting_blocks(const core::Problem& p, const AdditiveArguments& a,
                               const Projections& x);

// Returns what no kernel supports about a call with an additive score, whatever its results are, or
// an empty string.
std::string additive_call_unsupported(const core::Problem& p);

// Returns what the kernels do not support about a call with an additive score, or an empty string.
std::string additive_unsupported(const core::Problem& p, const core::Results& results);

// The launches of a call that is supported; none if it has no queries.
AdditiveLaunches additive_launches(const core::Problem& p, const core::Results& results);

// Sets the addresses of the projections, which lie in `memory`: projection_bytes bytes of the
// device's memory, aligned to 16 bytes.
void set_projections(AdditiveLaunches& launches, float* memory);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_ADDITIVE_LAUNCH_H_
