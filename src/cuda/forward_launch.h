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

// Tells what the kernels for tensor cores (device/forward.h, device/inspection.h) support, and
// which of them run a call.
namespace qkv::cuda {

// The kernels of a call in the order of their launch, all with the same arguments. The caller must
// set arguments.statistics to memory of statistics_bytes bytes, or to null for 0 bytes.
struct ForwardLaunches {
  ForwardArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::size_t statistics_bytes = 0;
};

// Returns "input transforms (...)" if the call has input transforms, which no kernel of dot
// products supports, or an empty string.
std::string transforms_unsupported(const core::Problem& p);

// Returns what no kernel with tiles of 16-bit numbers supports about a call's dtype, input
// transforms and channels, or an empty string.
std::string tiles_unsupported(const core::Problem& p);

// Returns what the kernels do not support about a call with dot-product scores, such as "user
// functions (mods)", or an empty string.
std::string forward_unsupported(const core::Problem& p, const core::Results& results);

// The launches of a call that forward_unsupported() accepts. Kernels without blocks are left out.
ForwardLaunches forward_launches(const core::Problem& p, const core::Results& results);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FORWARD_LAUNCH_H_
