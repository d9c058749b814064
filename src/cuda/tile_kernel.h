// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_TILE_KERNEL_H_
#define QKV_CUDA_TILE_KERNEL_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/problem.h"
#include "cuda/device/forward_shape.h"

// Lists of kernels for tiles, and the choice of the one that runs a call.
namespace qkv::cuda {

// One kernel, for tiles of one type and width. Forward kernels with `every` support all options
// that options_unsupported() permits; the others do not support bias, Keep, Padding, ALiBi,
// soft-cap, dropout, or scales outside of 0 < scale <= 1. All gradient kernels support all options;
// those with `every` have shared memory for a bias, Keep and Padding.
struct TileKernel {
  const char* image;  // its source: src/cuda/device/IMAGE.cu
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

constexpr DType dtype_of_tiles(BFloat16Tiles) { return DType::kBFloat16; }
constexpr DType dtype_of_tiles(Float16Tiles) { return DType::kFloat16; }

// A kernel's entry in a list, from the shape of its tiles. `stages`: the kernel has shared memory
// for a bias, Keep and Padding.
template <class Shape, class Tiles>
constexpr TileKernel entry(const char* image, const char* name, bool every, bool stages) {
  return {image,
          name,
          dtype_of_tiles(Tiles{}),
          Shape::kWidth,
          every,
          Shape::kRows,
          Shape::kKeys,
          Shape::kThreads,
          stages ? Shape::kEveryBytes : Shape::kSharedBytes};
}

// A kernel without dtype and width, which is not in a list for choose().
constexpr TileKernel untiled(const char* image, const char* name, int threads,
                             std::uint32_t shared_bytes) {
  TileKernel kernel{};
  kernel.image = image;
  kernel.name = name;
  kernel.threads = threads;
  kernel.shared_bytes = shared_bytes;
  return kernel;
}

// The first kernel of a list that supports the call's dtype and number of channels.
inline const TileKernel& choose(std::span<const TileKernel> kernels, const core::Problem& p,
                                bool every) {
  const Index width = std::max(p.Dk, p.E);
  for (const TileKernel& kernel : kernels) {
    if (kernel.dtype == p.dtype && kernel.width >= width && kernel.every == every) return kernel;
  }
  return kernels.front();  // not reached: tiles_unsupported() has checked dtype and width
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_TILE_KERNEL_H_
