// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_SHAPE_H_
#define QKV_CUDA_DEVICE_ADDITIVE_SHAPE_H_

#include <cstdint>

#include "cuda/device/float_shape.h"

namespace qkv::cuda {

// The number of units of the additive score that are summed from zero (core::kUnitChunk), and that
// are in shared memory at a time.
inline constexpr int kUnitChunk = kFloatChunk;
inline constexpr int kUnitQuads = kUnitChunk / 4;

// The list of kernels: name, shape, and the number of blocks for which a multiprocessor must have
// registers (__launch_bounds__). The kernel of an entry is named qkv_additive_NAME. Widths ascend:
// the first kernel that a call fits runs it.
#define QKV_FOR_EACH_ADDITIVE(X) \
  X(64, Float64, 2)              \
  X(128, Float128, 2)            \
  X(256, Float256, 2)

// The sizes of the kernel that sums gradients of units over rows.
struct UnitShape {
  static constexpr int kThreads = 128;
  static constexpr std::uint32_t kSharedBytes = kThreads * 8;
};

// The sizes of the kernel that projects q and k: blocks of kRows rows and kUnits units.
struct ProjectionShape {
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64;
  static constexpr int kUnits = 64;
  static constexpr int kChannels = 32;  // in shared memory at a time
  static constexpr int kPitch = (64 + 4) * 4;
  static constexpr std::uint32_t kX = 0;  // [kChannels, kRows]
  static constexpr std::uint32_t kW = kX + kChannels * kPitch;
  static constexpr std::uint32_t kSharedBytes = kW + kChannels * kPitch;
};

// The list of gradient kernels, named qkv_additive_gradients_NAME, in the order of their launch:
// name, type that has the number of threads and the bytes of shared memory, and number of blocks
// for which a multiprocessor must have registers (__launch_bounds__).
#define QKV_FOR_EACH_ADDITIVE_GRADIENT(X) \
  X(project, ProjectionShape, 1)          \
  X(prepare, FloatGradientShape, 2)       \
  X(queries, FloatGradientShape, 2)       \
  X(keys, FloatGradientShape, 2)          \
  X(rows, ProjectionShape, 1)             \
  X(matrices, ProjectionShape, 1)         \
  X(units, UnitShape, 1)

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_SHAPE_H_
