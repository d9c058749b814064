// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_FORWARD_LAUNCH_H_
#define QKV_CUDA_FORWARD_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/results.h"
#include "cuda/device/arguments.h"

// The kernels of tensor cores (device/forward.h, device/inspection.h): what they support, and which
// of them run a call.
namespace qkv::cuda {

// One kernel, for tiles of one type and width. Forward kernels with `every` have all options that
// forward_unsupported() permits; the others have causal masks, windows and lengths only, and scales
// above 0.
struct TileKernel {
  const char* image;  // the file that defines it
  const char* name;
  DType dtype;
  int width;
  bool every;
  int rows;  // queries of a block
  int keys;  // keys of a tile
  int threads;
  std::uint32_t shared_bytes;
};

struct KernelLaunch {
  const TileKernel* kernel = nullptr;
  std::int64_t blocks = 0;
};

// The kernels of a call in their order. All have the same arguments, whose `statistics` the caller
// sets to memory of this size, if it is not 0.
struct ForwardLaunches {
  ForwardArguments arguments;
  std::vector<KernelLaunch> kernels;
  std::size_t statistics_bytes = 0;
};

// Returns what the kernels do not support about a call, such as "user functions (mods)", or an
// empty string.
std::string forward_unsupported(const core::Problem& p, const core::Results& results);

// The launches of a call that is supported; none if its results have no elements.
ForwardLaunches forward_launches(const core::Problem& p, const core::Results& results);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_FORWARD_LAUNCH_H_
