// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_SHAPE_H_
#define QKV_CUDA_DEVICE_ADDITIVE_SHAPE_H_

#include <cstdint>

#include "cuda/device/forward_shape.h"

namespace qkv::cuda {

// Units of the additive score that are summed from zero (core::kUnitChunk), and that are in shared
// memory at a time.
inline constexpr int kUnitChunk = 32;
inline constexpr int kUnitQuads = kUnitChunk / 4;

// The sizes of a forward kernel of the additive score: values of up to kWidth channels, and blocks
// of 64 queries against kKeys keys at a time. What it has in common with ForwardShape has the same
// names, so that both share the code of options, masks and the softmax. Pitches are in bytes; four
// numbers more than a row's keep the rows of a warp in different banks.
template <int kWidthOf, int kKeysOf>
struct AdditiveShape {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kRowTiles = 1;
  static constexpr int kKeys = kKeysOf;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kChannelTiles = kWidth / 8;

  static constexpr int kLeftPitch = (kUnitChunk + 4) * 4;
  static constexpr int kRightPitch = kKeys * 4;
  static constexpr int kWeightPitch = (kKeys + 4) * 4;
  static constexpr int kValuePitch = kWidth * 4;

  // Shared memory, in bytes from its start.
  static constexpr std::uint32_t kLeft = 0;  // a chunk of units: [kRows, units]
  static constexpr std::uint32_t kRight = kLeft + kRows * kLeftPitch;  // [units, kKeys]
  static constexpr std::uint32_t kUnits = kRight + kUnitChunk * kRightPitch;
  // The next chunk's projections on their way: a thread reads those that it has copied.
  static constexpr std::uint32_t kNextLeft = kUnits + kUnitChunk * 4;
  static constexpr std::uint32_t kNextRight = kNextLeft + kRows * kUnitChunk * 4;
  static constexpr std::uint32_t kV = kNextRight + kKeys * kUnitChunk * 4;
  static constexpr std::uint32_t kBounds = kV + kKeys * kValuePitch;   // 2 ints a row
  static constexpr std::uint32_t kWarpBounds = kBounds + kRows * 8;    // 4 ints a warp
  static constexpr std::uint32_t kPlaces = kWarpBounds + kWarps * 16;  // 2 numbers of 8 bytes
  // 1 byte an element, from a multiple of 256 bytes on, as PairPlaces needs it.
  static constexpr std::uint32_t kKeep = (kPlaces + 16 + 255) / 256 * 256;
  static constexpr std::uint32_t kBias = kKeep + kRows * kKeys;         // up to 4 bytes an element
  static constexpr std::uint32_t kPadding = kBias + kRows * kKeys * 4;  // 1 int a key
  static constexpr std::uint32_t kSharedBytes = kPadding + kKeys * 4;
  // The weights, [kRows, kKeys], take the place of projections that have been used.
  static constexpr std::uint32_t kWeights = kLeft;
  static_assert(kRows * kWeightPitch <= kRows * kLeftPitch + kUnitChunk * kRightPitch);
};

using Additive64 = AdditiveShape<64, 64>;
using Additive128 = AdditiveShape<128, 64>;
using Additive256 = AdditiveShape<256, 32>;

// The list of kernels: name, shape, and the blocks that the registers and the shared memory of a
// multiprocessor of Hopper have room for. The kernel of an entry is named qkv_additive_NAME. In
// ascending order of width: the first that a call fits runs it.
#define QKV_FOR_EACH_ADDITIVE(X) \
  X(64, Additive64, 2)           \
  X(128, Additive128, 2)         \
  X(256, Additive256, 2)

// The sizes of the gradient kernels of the additive score, for values of any width: blocks of 64
// queries and of 64 keys. Names are those of AdditiveShape.
struct AdditiveGradientShape {
  static constexpr int kRowTiles = 1;
  static constexpr int kKeys = 64;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kChannels = 32;  // of dout and v in shared memory at a time

  static constexpr int kLeftPitch = (kUnitChunk + 4) * 4;
  static constexpr int kRightPitch = kKeys * 4;
  static constexpr int kPairPitch = (kKeys + 4) * 4;
  static constexpr int kRowPitch = (kChannels + 4) * 4;

  static constexpr std::uint32_t kLeft = 0;  // a chunk of units: [kRows, units]
  static constexpr std::uint32_t kRight = kLeft + kRows * kLeftPitch;  // [units, kKeys]
  static constexpr std::uint32_t kUnits = kRight + kUnitChunk * kRightPitch;
  static constexpr std::uint32_t kNextLeft = kUnits + kUnitChunk * 4;
  static constexpr std::uint32_t kNextRight = kNextLeft + kRows * kUnitChunk * 4;
  static constexpr std::uint32_t kDout = kNextRight + kKeys * kUnitChunk * 4;  // [kRows, kChannels]
  static constexpr std::uint32_t kV = kDout + kRows * kRowPitch;               // [kChannels, kKeys]
  static constexpr std::uint32_t kBounds = kV + kChannels * kRightPitch;
  static constexpr std::uint32_t kWarpBounds = kBounds + kRows * 8;
  static constexpr std::uint32_t kPlaces = kWarpBounds + kWarps * 16;
  static constexpr std::uint32_t kKeep = (kPlaces + 16 + 255) / 256 * 256;
  static constexpr std::uint32_t kBias = kKeep + kRows * kKeys;
  static constexpr std::uint32_t kPadding = kBias + kRows * kKeys * 4;
  static constexpr std::uint32_t kSharedBytes = kPadding + kKeys * 4;
  // Numbers of pairs, [kRows, kKeys], take the place of projections that have been used.
  static constexpr std::uint32_t kPairs = kLeft;
  static_assert(kRows * kPairPitch <= kRows * kLeftPitch + kUnitChunk * kRightPitch);
};

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
// name, type that has the number of threads as kThreads, and blocks that a multiprocessor of Hopper
// has room for.
#define QKV_FOR_EACH_ADDITIVE_GRADIENT(X) \
  X(project, ProjectionShape, 1)          \
  X(prepare, AdditiveGradientShape, 2)    \
  X(queries, AdditiveGradientShape, 2)    \
  X(keys, AdditiveGradientShape, 2)       \
  X(rows, ProjectionShape, 1)             \
  X(matrices, ProjectionShape, 1)         \
  X(units, UnitShape, 1)

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_SHAPE_H_
