// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_FLOAT_LAUNCH_H_
#define QKV_CUDA_FLOAT_LAUNCH_H_

#include <cstddef>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/forward_launch.h"
#include "cuda/tile_kernel.h"

// Tells what the kernels of dot products in float32 (device/float_forward.h,
// device/float_gradients.h) support, and which of them run a call.
namespace qkv::cuda {

// Returns what the kernels do not support about a call, or an empty string.
std::string float_unsupported(const core::Problem& p, const core::Results& results);

// The launches of a call that float_unsupported() accepts; none if its results have no elements.
ForwardLaunches float_launches(const core::Problem& p, const core::Results& results);

// The kernels of a backward call in the order of their launch, all with the same arguments. They
// need `bytes` bytes of scratch memory: see set_memory().
struct FloatGradientLaunches {
  FloatGradientArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::size_t bytes = 0;
};

std::string float_gradients_unsupported(const core::Problem& p, const core::GradientSources& from,
                                        const core::GradientResults& to);
FloatGradientLaunches float_gradient_launches(const core::Problem& p,
                                              const core::GradientSources& from,
                                              const core::GradientResults& to);

// Lets the arguments point to parts of `memory` for statistics and sums. `memory` is memory of the
// device of launches.bytes bytes, aligned to 16 bytes.
void set_memory(FloatGradientLaunches& launches, const core::Problem& p, float* memory);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FLOAT_LAUNCH_H_
