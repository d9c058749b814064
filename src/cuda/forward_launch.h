// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_FORWARD_LAUNCH_H_
#define QKV_CUDA_FORWARD_LAUNCH_H_

#include <cstdint>
#include <string>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/arguments.h"

// The forward kernels of tensor cores (device/forward.h): what they support, and which of them runs
// a call.
namespace qkv::cuda {

// One kernel of kernels.cu, for tiles of one type and width. `every` has all options that
// forward_unsupported() permits; the other kernels have causal masks, windows and lengths only, and
// scales above 0.
struct ForwardKernel {
  const char* name;
  DType dtype;
  int width;
  bool every;
  int rows;  // queries of one block
  int threads;
  std::uint32_t shared_bytes;
};

struct ForwardLaunch {
  const ForwardKernel* kernel = nullptr;
  ForwardArguments arguments;
  std::int64_t blocks = 0;
};

// Returns what the kernels do not support about a call, such as "user functions (mods)", or an
// empty string.
std::string forward_unsupported(const core::Problem& p, const core::Results& results);

// The launch of a call that is supported and has queries.
ForwardLaunch forward_launch(const core::Problem& p, const core::Results& results);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FORWARD_LAUNCH_H_
