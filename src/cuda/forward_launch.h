// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_FORWARD_LAUNCH_H_
#define QKV_CUDA_FORWARD_LAUNCH_H_

#include <cstddef>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/arguments.h"
#include "cuda/tile_kernel.h"

// The kernels of tensor cores (device/forward.h, device/inspection.h): what they support, and which
// of them run a call.
namespace qkv::cuda {

// The kernels of a call in their order. All have the same arguments, whose `statistics` the caller
// sets to memory of statistics_bytes, or to null for 0 bytes.
struct ForwardLaunches {
  ForwardArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::size_t statistics_bytes = 0;
};

// Returns "input transforms (...)" if the call has any, which no kernel of dot products supports,
// or an empty string.
std::string transforms_unsupported(const core::Problem& p);

// Returns what no kernel with tiles of 16-bit numbers supports about a call's dtype, input
// transforms and channels, or an empty string.
std::string tiles_unsupported(const core::Problem& p);

// Returns what the kernels do not support about a call with dot-product scores, such as "user
// functions (mods)", or an empty string.
std::string forward_unsupported(const core::Problem& p, const core::Results& results);

// The launches of a call that is supported, without kernels that would have no blocks.
ForwardLaunches forward_launches(const core::Problem& p, const core::Results& results);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FORWARD_LAUNCH_H_
