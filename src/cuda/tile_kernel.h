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

// One kernel, for tiles of one type and width. Forward kernels with `every` have all options that
// options_unsupported() permits; the others have no bias, Keep, Padding, ALiBi, soft-cap or
// dropout, and only scales from above 0 to 1. All gradient kernels have all options; those with `every` have
// shared memory for the options that are staged there.
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

constexpr DType dtype_of_tiles(BFloat16Tiles) { return DType::kBFloat16; }
constexpr DType dtype_of_tiles(Float16Tiles) { return DType::kFloat16; }

// A kernel's entry, from the shape of its tiles. `stages`: options pass through shared memory.
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

// A kernel that is not chosen by a call's type and width.
constexpr TileKernel untiled(const char* image, const char* name, int threads,
                             std::uint32_t shared_bytes) {
  TileKernel kernel{};
  kernel.image = image;
  kernel.name = name;
  kernel.threads = threads;
  kernel.shared_bytes = shared_bytes;
  return kernel;
}

// The first kernel of a list that the call fits.
inline const TileKernel& choose(std::span<const TileKernel> kernels, const core::Problem& p,
                                bool every) {
  const Index width = std::max(p.Dk, p.E);
  for (const TileKernel& one : kernels) {
    if (one.dtype == p.dtype && one.width >= width && one.every == every) return one;
  }
  return kernels.front();  // not reached: tiles_unsupported() has checked dtype and width
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_TILE_KERNEL_H_
