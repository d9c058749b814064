// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_FORWARD_SHAPE_H_
#define QKV_CUDA_DEVICE_FORWARD_SHAPE_H_

#include <cstdint>

namespace qkv::cuda {

// The types of the numbers in tiles that tensor cores multiply.
struct BFloat16Tiles {};
struct Float16Tiles {};

// The sizes of a forward kernel: kWidth channels (q, k and v are filled up with zeros), and blocks
// of kWarps * kRowTiles tiles of 16 queries against kKeys keys at a time.
template <int kWidthOf, int kRowTilesOf, int kKeysOf, int kWarpsOf = 4>
struct ForwardShape {
  static constexpr int kWidth = kWidthOf;
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kKeys = kKeysOf;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = kRowTiles * 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kChannelTiles = kWidth / 8;
  static constexpr int kPitch = kWidth * 2;  // bytes of a row in shared memory

  // Shared memory, in bytes from its start.
  static constexpr std::uint32_t kQ = 0;
  static constexpr std::uint32_t kK = kQ + kRows * kPitch;
  static constexpr std::uint32_t kV = kK + kKeys * kPitch;
  static constexpr std::uint32_t kWeights = kV + kKeys * kPitch;          // 2 bytes each
  static constexpr std::uint32_t kBounds = kWeights + kRows * kKeys * 2;  // 2 ints a row
  static constexpr std::uint32_t kWarpBounds = kBounds + kRows * 8;       // 4 ints a warp
  static constexpr std::uint32_t kPlaces = kWarpBounds + kWarps * 16;     // 2 offsets of 8 bytes
  static constexpr std::uint32_t kSharedBytes = (kPlaces + 16 + 255) / 256 * 256;
  // Kernels with every option also have a tile of Keep, with 1 byte an element, a tile of the bias,
  // with up to 4 bytes an element, and 4 bytes for each key, which are 0 unless it is padding.
  static constexpr std::uint32_t kKeep = kSharedBytes;
  static constexpr std::uint32_t kBias = kKeep + kRows * kKeys;
  static constexpr std::uint32_t kPadding = kBias + kRows * kKeys * 4;
  static constexpr std::uint32_t kEveryBytes = kPadding + kKeys * 4;
};

using Forward64 = ForwardShape<64, 2, 64>;
using Forward64Every = ForwardShape<64, 2, 64>;
using Forward128 = ForwardShape<128, 2, 64>;
using Forward128Every = ForwardShape<128, 1, 64>;
using Forward256 = ForwardShape<256, 1, 32>;
using Forward256Every = ForwardShape<256, 1, 32>;

// The lists of kernels: name, shape, type of tiles; for forward kernels also whether they have
// every option (see tile_kernel.h). Kernels are named qkv_forward_NAME, qkv_sum_columns_NAME and
// qkv_inspect_rows_NAME. Widths ascend, and the first kernel that a call fits runs it. Kernels of
// one width have equal kKeys.
#define QKV_FOR_EACH_PLAIN_FORWARD(X)               \
  X(bfloat16_64, Forward64, BFloat16Tiles, false)   \
  X(float16_64, Forward64, Float16Tiles, false)     \
  X(bfloat16_128, Forward128, BFloat16Tiles, false) \
  X(float16_128, Forward128, Float16Tiles, false)   \
  X(bfloat16_256, Forward256, BFloat16Tiles, false) \
  X(float16_256, Forward256, Float16Tiles, false)
#define QKV_FOR_EACH_EVERY_FORWARD(X)                         \
  X(bfloat16_64_every, Forward64Every, BFloat16Tiles, true)   \
  X(float16_64_every, Forward64Every, Float16Tiles, true)     \
  X(bfloat16_128_every, Forward128Every, BFloat16Tiles, true) \
  X(float16_128_every, Forward128Every, Float16Tiles, true)   \
  X(bfloat16_256_every, Forward256Every, BFloat16Tiles, true) \
  X(float16_256_every, Forward256Every, Float16Tiles, true)
#define QKV_FOR_EACH_FORWARD(X) \
  QKV_FOR_EACH_PLAIN_FORWARD(X) \
  QKV_FOR_EACH_EVERY_FORWARD(X)
#define QKV_FOR_EACH_INSPECTION(X)           \
  X(bfloat16_64, Forward64, BFloat16Tiles)   \
  X(float16_64, Forward64, Float16Tiles)     \
  X(bfloat16_128, Forward128, BFloat16Tiles) \
  X(float16_128, Forward128, Float16Tiles)   \
  X(bfloat16_256, Forward256, BFloat16Tiles) \
  X(float16_256, Forward256, Float16Tiles)
static_assert(Forward64::kKeys == Forward64Every::kKeys &&
              Forward128::kKeys == Forward128Every::kKeys &&
              Forward256::kKeys == Forward256Every::kKeys);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_FORWARD_SHAPE_H_
