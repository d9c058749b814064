// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_ADDITIVE_GRADIENT_LAUNCH_H_
#define QKV_CUDA_ADDITIVE_GRADIENT_LAUNCH_H_

#include <cstddef>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/additive_arguments.h"
#include "cuda/tile_kernel.h"

// The gradient kernels of the additive score (device/additive_gradients.h): what they support, and
// which of them run a call.
namespace qkv::cuda {

// The kernels of a call in their order. All take the same arguments, in which set_memory() sets the
// addresses of scratch memory.
struct AdditiveGradientLaunches {
  AdditiveGradientArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::size_t bytes = 0;  // of scratch memory
};

// Returns what the kernels do not support about a backward call, or an empty string.
std::string additive_gradients_unsupported(const core::Problem& p,
                                           const core::GradientSources& from,
                                           const core::GradientResults& to);

// The launches of a call that is supported, without kernels that would have no blocks.
AdditiveGradientLaunches additive_gradient_launches(const core::Problem& p,
                                                    const core::GradientSources& from,
                                                    const core::GradientResults& to);

// Sets the addresses of projections, sums and statistics, which lie in `memory`: launches.bytes
// bytes of the device's memory, aligned to 16 bytes.
void set_memory(AdditiveGradientLaunches& launches, const core::Problem& p, float* memory);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_ADDITIVE_GRADIENT_LAUNCH_H_
