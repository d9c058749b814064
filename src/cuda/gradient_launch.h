// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_GRADIENT_LAUNCH_H_
#define QKV_CUDA_GRADIENT_LAUNCH_H_

#include <cstddef>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/tile_kernel.h"

// Tells what the gradient kernels for tensor cores (device/gradients.cu) support, and which of them
// run a call.
namespace qkv::cuda {

// The kernels of a call in the order of their launch, all with the same arguments. The caller must
// set arguments.call.statistics and arguments.slope_terms to memory of these sizes, or to null if
// the size is 0.
struct GradientLaunches {
  GradientArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::size_t statistics_bytes = 0;
  std::size_t slope_terms_bytes = 0;
};

// Returns what the kernels do not support about a backward call, or an empty string.
std::string gradients_unsupported(const core::Problem& p, const core::GradientSources& from,
                                  const core::GradientResults& to);

// Returns "the gradient of a ..." for a q, k or v whose gradient would be summed over batch entries
// or heads, or an empty string.
std::string broadcast_unsupported(const core::Problem& p, const core::GradientResults& to);

// The launches of a call that gradients_unsupported() accepts. Kernels without blocks are left out.
GradientLaunches gradient_launches(const core::Problem& p, const core::GradientSources& from,
                                   const core::GradientResults& to);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_GRADIENT_LAUNCH_H_
