// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_PROJECT_H_
#define QKV_CUDA_DEVICE_ADDITIVE_PROJECT_H_

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/arrays.h"
#include "cuda/device/words.h"

// The projections x = Wq q + b and y = Wk k of the additive score, as docs/semantics.md orders
// their sums: fused multiply-adds in blocks of 64 channels. One thread computes a number, so its
// bits depend on no other row.
namespace qkv::cuda {

struct alignas(16) FourFloats {
  float x[4];
};

// Copies a tile of a matrix, from (first_row, first_column) on, to shared memory, its columns as
// rows. What is outside of the matrix becomes 0.
QKV_DEVICE void load_columns(std::uint32_t tile, const float* x, const DeviceArray& strides,
                             int first_row, int rows, int first_column, int columns) {
  using Shape = ProjectionShape;
  static_assert(Shape::kRows == Shape::kUnits && Shape::kThreads % Shape::kChannels == 0);
  const int c = thread_index() % Shape::kChannels;
  const int column = first_column + c;
  QKV_ROLLED
  for (int n = thread_index() / Shape::kChannels; n < Shape::kRows;
       n += Shape::kThreads / Shape::kChannels) {
    const int row = first_row + n;
    float value = 0;
    if (row < rows && column < columns) value = x[row * strides.row + column * strides.col];
    store_shared(tile + static_cast<std::uint32_t>(c * Shape::kPitch + n * 4),
                 float_to_bits(value));
  }
}

QKV_DEVICE void project(const AdditiveArguments& a) {
  using Shape = ProjectionShape;
  constexpr int kBlock = 64;  // core::kChannelBlock
  static_assert(kBlock % Shape::kChannels == 0);
  constexpr int kOwnRows = 4;
  constexpr int kOwnUnits = 8;
  const int t = thread_index();
  const bool is_key = block_index() >= a.left_blocks;
  int block = block_index() - (is_key ? static_cast<int>(a.left_blocks) : 0);
  const Projections& to = is_key ? a.right : a.left;
  const DeviceArray& x = is_key ? a.call.k : a.call.q;
  const DeviceArray& w = is_key ? a.wk : a.wq;
  const int channels = is_key ? a.call.D : a.Dq;

  const int first_unit = block % a.unit_blocks * Shape::kUnits;
  block /= a.unit_blocks;
  const int first_row = block % to.row_blocks * Shape::kRows;
  block /= to.row_blocks;
  const int h = block % to.heads;
  const int entry = block / to.heads;
  // Projected keys have a head for each key head, or one for each query head if Wk has.
  const int head =
      is_key ? static_cast<int>(static_cast<std::int64_t>(h) * a.call.G / to.heads) : h;
  const float* rows = static_cast<const float*>(x.data) + offset_of(a.call, x, entry, head);
  const float* units = static_cast<const float*>(w.data) + h * w.head;

  float total[kOwnRows][kOwnUnits], sum[kOwnRows][kOwnUnits];
  QKV_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    QKV_UNROLL
    for (int u = 0; u < kOwnUnits; ++u) total[r][u] = sum[r][u] = 0;
  }
  const std::uint32_t own_row = static_cast<std::uint32_t>(t / 8 * kOwnRows * 4);
  const std::uint32_t own_unit = static_cast<std::uint32_t>(t % 8 * kOwnUnits * 4);
  QKV_ROLLED
  for (int c0 = 0; c0 < channels; c0 += Shape::kChannels) {
    if (c0 > 0) sync_threads();  // all have finished with the last tiles
    load_columns(Shape::kX, rows, x, first_row, to.rows, c0, channels);
    load_columns(Shape::kW, units, w, first_unit, a.U, c0, channels);
    sync_threads();
    // Channels beyond the last are zeros in both tiles, which need not be added.
    const int count = channels - c0 < Shape::kChannels ? channels - c0 : Shape::kChannels;
    QKV_ROLLED
    for (int c = 0; c < count; ++c) {
      const std::uint32_t at = static_cast<std::uint32_t>(c * Shape::kPitch);
      const Words4 left = load_shared_words(Shape::kX + at + own_row);
      QKV_UNROLL
      for (int part = 0; part < kOwnUnits / 4; ++part) {
        const Words4 right =
            load_shared_words(Shape::kW + at + own_unit + static_cast<std::uint32_t>(part * 16));
        QKV_UNROLL
        for (int r = 0; r < kOwnRows; ++r) {
          QKV_UNROLL
          for (int n = 0; n < 4; ++n) {
            float& one = sum[r][part * 4 + n];
            one = fused(bits_to_float(left.w[r]), bits_to_float(right.w[n]), one);
          }
        }
      }
    }
    if ((c0 + Shape::kChannels) % kBlock != 0 && c0 + Shape::kChannels < channels) continue;
    QKV_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      QKV_UNROLL
      for (int u = 0; u < kOwnUnits; ++u) {
        total[r][u] = rounded_sum(total[r][u], sum[r][u]);
        sum[r][u] = 0;
      }
    }
  }

  const float* added = is_key ? nullptr : static_cast<const float*>(a.b.data);
  QKV_UNROLL
  for (int part = 0; part < kOwnUnits / 4; ++part) {
    const int u = first_unit + t % 8 * kOwnUnits + part * 4;
    if (u >= a.U) continue;
    const std::int64_t quad = (static_cast<std::int64_t>(entry) * to.heads + h) * a.quads + u / 4;
    QKV_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      const int row = first_row + t / 8 * kOwnRows + r;
      if (row >= to.rows) continue;
      FourFloats four;
      QKV_UNROLL
      for (int n = 0; n < 4; ++n) {
        float y = total[r][part * 4 + n];
        if (added != nullptr && u + n < a.U) {
          y = rounded_sum(y, added[h * a.b.head + (u + n) * a.b.col]);
        }
        four.x[n] = u + n < a.U ? y : 0.0F;
      }
      reinterpret_cast<FourFloats*>(to.data)[quad * to.rows + row] = four;
    }
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_PROJECT_H_
