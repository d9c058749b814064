// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_GRADIENT_SHAPE_H_
#define QKV_CUDA_DEVICE_GRADIENT_SHAPE_H_

#include <cstdint>

#include "cuda/device/forward_shape.h"

namespace qkv::cuda {

// Above this |lse|, weights are divided by their sum, because the rounding of lse shows in them
// (core/weight_factor.h).
inline constexpr float kLargeLse = 16;
// Through rounding, lse and the recomputed lse may differ by this times (|lse| + kLargeLse).
inline constexpr float kLseRounding = 0x1p-21F;

// The sizes of the gradient kernels: blocks of 64 queries (four tiles of 16) and of kKeys keys. A
// warp computes the sums over queries for 16 keys; if there are twice as many warps as groups of 16
// keys, two warps share the channels of a group.
template <int kWidthOf, int kKeysOf>
struct GradientShape : ForwardShape<kWidthOf, 1, kKeysOf> {
  using Base = ForwardShape<kWidthOf, 1, kKeysOf>;
  static constexpr int kKeyGroups = Base::kKeys / 16;
  static constexpr int kChannelParts = Base::kWarps / kKeyGroups;
  static constexpr int kOwnChannelTiles = Base::kChannelTiles / kChannelParts;
  static_assert(kKeyGroups * kChannelParts == Base::kWarps && kOwnChannelTiles % 2 == 0);

  // Shared memory behind the tiles of q, k, v and weights: dout, gradients of scores (2 bytes
  // each), and numbers that scale the gradients of each key (gradient_scales.h).
  static constexpr std::uint32_t kDout = (Base::kSharedBytes + 1023) / 1024 * 1024;
  static constexpr std::uint32_t kGradients = kDout + Base::kRows * Base::kPitch;
  static constexpr std::uint32_t kTops = kGradients + Base::kRows * Base::kKeys * 2;
  static constexpr std::uint32_t kTopBytes = (2 + Base::kWarps) * Base::kKeys * 4;
  static constexpr std::uint32_t kSharedBytes = kTops + (kTopBytes + 255) / 256 * 256;
  // Calls with a bias, Keep or Padding also have room for tiles of these.
  static constexpr std::uint32_t kKeep = kSharedBytes;
  static constexpr std::uint32_t kBias = kKeep + Base::kRows * Base::kKeys;
  static constexpr std::uint32_t kPadding = kBias + Base::kRows * Base::kKeys * 4;
  static constexpr std::uint32_t kEveryBytes = kPadding + Base::kKeys * 4;
};

using Gradient64 = GradientShape<64, 64>;
using Gradient128 = GradientShape<128, 64>;
using Gradient256 = GradientShape<256, 32>;
// Sums of exponentials have the bits of the forward pass, because tiles have as many keys.
static_assert(Gradient64::kKeys == Forward64::kKeys && Gradient128::kKeys == Forward128::kKeys &&
              Gradient256::kKeys == Forward256::kKeys);

// The threads of a block in kernels that sum single numbers: qkv_head_gradients_slopes and
// qkv_head_gradients_sinks, and qkv_additive_gradients_units.
inline constexpr int kSummingThreads = 128;

// The list of kernels, named qkv_prepare_gradients_NAME, qkv_query_gradients_NAME,
// qkv_key_gradients_NAME, qkv_bias_gradients_NAME and qkv_distance_gradients_NAME: name, shape,
// type of tiles. Widths ascend.
#define QKV_FOR_EACH_GRADIENT(X)              \
  X(bfloat16_64, Gradient64, BFloat16Tiles)   \
  X(float16_64, Gradient64, Float16Tiles)     \
  X(bfloat16_128, Gradient128, BFloat16Tiles) \
  X(float16_128, Gradient128, Float16Tiles)   \
  X(bfloat16_256, Gradient256, BFloat16Tiles) \
  X(float16_256, Gradient256, Float16Tiles)

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_GRADIENT_SHAPE_H_
