// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FLOAT_SHAPE_H_
#define QKV_CUDA_DEVICE_FLOAT_SHAPE_H_

#include <cstdint>

// The sizes of kernels of float32, with dot products or the additive score.
namespace qkv::cuda {

// Channels, or units of the additive score, that are in shared memory at a time.
inline constexpr int kFloatChunk = 32;

// The sizes of a forward kernel: values of up to kWidth channels, and blocks of 64 queries against
// kKeys keys at a time. Sizes and addresses that ForwardShape also has are named as there, so that
// the code of options, masks and the softmax works with either. A pitch is the number of bytes from
// row to row; four unused numbers in kLeftPitch and kWeightPitch put a warp's rows in different
// banks.
template <int kWidthOf, int kKeysOf>
struct FloatShape {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kRowTiles = 1;
  static constexpr int kKeys = kKeysOf;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kChannelTiles = kWidth / 8;

  static constexpr int kLeftPitch = (kFloatChunk + 4) * 4;
  static constexpr int kRightPitch = kKeys * 4;
  static constexpr int kWeightPitch = (kKeys + 4) * 4;
  static constexpr int kValuePitch = kWidth * 4;

  // Shared memory, in bytes from its start.
  static constexpr std::uint32_t kLeft = 0;  // a chunk of channels or units: [kRows, units]
  static constexpr std::uint32_t kRight = kLeft + kRows * kLeftPitch;  // [units, kKeys]
  static constexpr std::uint32_t kUnits = kRight + kFloatChunk * kRightPitch;
  // Asynchronous copies of the next chunk's projections; a thread reads only what it has copied.
  static constexpr std::uint32_t kNextLeft = kUnits + kFloatChunk * 4;
  static constexpr std::uint32_t kNextRight = kNextLeft + kRows * kFloatChunk * 4;
  static constexpr std::uint32_t kV = kNextRight + kKeys * kFloatChunk * 4;
  static constexpr std::uint32_t kBounds = kV + kKeys * kValuePitch;   // 2 ints a row
  static constexpr std::uint32_t kWarpBounds = kBounds + kRows * 8;    // 4 ints a warp
  static constexpr std::uint32_t kPlaces = kWarpBounds + kWarps * 16;  // 2 offsets of 8 bytes
  // 1 byte an element, from a multiple of 256 bytes on, as PairPlaces needs it.
  static constexpr std::uint32_t kKeep = (kPlaces + 16 + 255) / 256 * 256;
  static constexpr std::uint32_t kBias = kKeep + kRows * kKeys;         // up to 4 bytes an element
  static constexpr std::uint32_t kPadding = kBias + kRows * kKeys * 4;  // 1 int a key
  static constexpr std::uint32_t kSharedBytes = kPadding + kKeys * 4;
  // The weights, [kRows, kKeys], overwrite a chunk of channels or units that has been used.
  static constexpr std::uint32_t kWeights = kLeft;
  static_assert(kRows * kWeightPitch <= kRows * kLeftPitch + kFloatChunk * kRightPitch);
};

using Float64 = FloatShape<64, 64>;
using Float128 = FloatShape<128, 64>;
using Float256 = FloatShape<256, 32>;

// The sizes of gradient kernels, for any number of channels: blocks of 64 queries and of 64 keys.
// Members are named as in FloatShape.
struct FloatGradientShape {
  static constexpr int kRowTiles = 1;
  static constexpr int kKeys = 64;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeyTiles = kKeys / 8;

  static constexpr int kLeftPitch = (kFloatChunk + 4) * 4;
  static constexpr int kRightPitch = kKeys * 4;
  static constexpr int kPairPitch = (kKeys + 4) * 4;

  static constexpr std::uint32_t kLeft = 0;  // a chunk of channels or units: [kRows, units]
  static constexpr std::uint32_t kRight = kLeft + kRows * kLeftPitch;  // [units, kKeys]
  static constexpr std::uint32_t kUnits = kRight + kFloatChunk * kRightPitch;
  static constexpr std::uint32_t kNextLeft = kUnits + kFloatChunk * 4;
  static constexpr std::uint32_t kNextRight = kNextLeft + kRows * kFloatChunk * 4;
  static constexpr std::uint32_t kDout = kNextRight + kKeys * kFloatChunk * 4;  // [kRows, channels]
  static constexpr std::uint32_t kBounds = kDout + kRows * kLeftPitch;
  static constexpr std::uint32_t kWarpBounds = kBounds + kRows * 8;
  static constexpr std::uint32_t kPlaces = kWarpBounds + kWarps * 16;
  static constexpr std::uint32_t kKeep = (kPlaces + 16 + 255) / 256 * 256;
  static constexpr std::uint32_t kBias = kKeep + kRows * kKeys;
  static constexpr std::uint32_t kPadding = kBias + kRows * kKeys * 4;
  static constexpr std::uint32_t kSharedBytes = kPadding + kKeys * 4;
  // A tile of pairs, [kRows, kKeys], overwrites a chunk of channels or units that has been used.
  static constexpr std::uint32_t kPairs = kLeft;
  static_assert(kRows * kPairPitch <= kRows * kLeftPitch + kFloatChunk * kRightPitch);
};

// The list of forward kernels of dot products, named qkv_float_forward_NAME: name and shape. Widths
// ascend: the first kernel that has enough channels for a call's values runs the call.
#define QKV_FOR_EACH_FLOAT_FORWARD(X) \
  X(64, Float64)                      \
  X(128, Float128)                    \
  X(256, Float256)

// The list of gradient kernels of dot products, named qkv_float_gradients_NAME, in the order of
// their launch.
#define QKV_FOR_EACH_FLOAT_GRADIENT(X) \
  X(prepare)                           \
  X(queries)                           \
  X(keys)

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FLOAT_SHAPE_H_
