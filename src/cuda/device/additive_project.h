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

// Copies a part of a matrix, from (first_row, first_column) on, to a tile in shared memory, whose
// rows are the columns of the matrix. Elements outside of the matrix become 0.
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

// A thread's products: four of the 64 columns of the tile kX times eight of the 64 of kW.
inline constexpr int kProductRows = 4;
inline constexpr int kProductUnits = 8;
using OwnProducts = float[kProductRows][kProductUnits];
QKV_DEVICE int own_first_row() { return thread_index() / 8 * kProductRows; }
QKV_DEVICE int own_first_unit() { return thread_index() % 8 * kProductUnits; }

// Adds the products of `count` rows of both tiles in ascending order.
QKV_DEVICE void add_tile_products(int count, OwnProducts& sum) {
  using Shape = ProjectionShape;
  const auto own_row = static_cast<std::uint32_t>(own_first_row() * 4);
  const auto own_unit = static_cast<std::uint32_t>(own_first_unit() * 4);
  QKV_ROLLED
  for (int c = 0; c < count; ++c) {
    const auto at = static_cast<std::uint32_t>(c * Shape::kPitch);
    const Words4 left = load_shared_words(Shape::kX + at + own_row);
    QKV_UNROLL
    for (int part = 0; part < kProductUnits / 4; ++part) {
      const Words4 right =
          load_shared_words(Shape::kW + at + own_unit + static_cast<std::uint32_t>(part * 16));
      QKV_UNROLL
      for (int r = 0; r < kProductRows; ++r) {
        QKV_UNROLL
        for (int n = 0; n < 4; ++n) {
          float& one = sum[r][part * 4 + n];
          one = fused(bits_to_float(left.w[r]), bits_to_float(right.w[n]), one);
        }
      }
    }
  }
}
QKV_DEVICE void clear_products(OwnProducts& x) {
  QKV_UNROLL
  for (int r = 0; r < kProductRows; ++r) {
    QKV_UNROLL
    for (int u = 0; u < kProductUnits; ++u) x[r][u] = 0;
  }
}
// Adds a block's sum to the total, except in rows that are not live, and sets the sum to 0 for the
// next block.
QKV_DEVICE void finish_block(OwnProducts& total, OwnProducts& sum,
                             const bool (&is_live)[kProductRows]) {
  QKV_UNROLL
  for (int r = 0; r < kProductRows; ++r) {
    QKV_UNROLL
    for (int u = 0; u < kProductUnits; ++u) {
      if (is_live[r]) total[r][u] = rounded_sum(total[r][u], sum[r][u]);
      sum[r][u] = 0;
    }
  }
}
QKV_DEVICE void finish_block(OwnProducts& total, OwnProducts& sum) {
  finish_block(total, sum, {true, true, true, true});
}

// The number of terms that are summed from zero (core::kChannelBlock).
inline constexpr int kTermBlock = 64;
static_assert(kTermBlock % ProjectionShape::kChannels == 0);

QKV_DEVICE void project(const AdditiveArguments& a) {
  using Shape = ProjectionShape;
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
  // Projected keys have a head for each key head, or for each query head if Wk or dWk has a matrix
  // for each query head.
  const int head =
      is_key ? static_cast<int>(static_cast<std::int64_t>(h) * a.call.G / to.heads) : h;
  const float* rows = static_cast<const float*>(x.data) + offset_of(a.call, x, entry, head);
  const float* units = static_cast<const float*>(w.data) + h * w.head;

  OwnProducts total, sum;
  clear_products(total);
  clear_products(sum);
  QKV_ROLLED
  for (int c0 = 0; c0 < channels; c0 += Shape::kChannels) {
    if (c0 > 0) sync_threads();  // all threads have finished with the previous tiles
    load_columns(Shape::kX, rows, x, first_row, to.rows, c0, channels);
    load_columns(Shape::kW, units, w, first_unit, a.U, c0, channels);
    sync_threads();
    // Channels beyond the last are zeros in both tiles, which need not be added.
    add_tile_products(channels - c0 < Shape::kChannels ? channels - c0 : Shape::kChannels, sum);
    if ((c0 + Shape::kChannels) % kTermBlock != 0 && c0 + Shape::kChannels < channels) continue;
    finish_block(total, sum);
  }

  const float* added = is_key ? nullptr : static_cast<const float*>(a.b.data);
  QKV_UNROLL
  for (int part = 0; part < kProductUnits / 4; ++part) {
    const int u = first_unit + own_first_unit() + part * 4;
    if (u >= a.U) continue;
    const std::int64_t quad = (static_cast<std::int64_t>(entry) * to.heads + h) * a.quads + u / 4;
    QKV_UNROLL
    for (int r = 0; r < kProductRows; ++r) {
      const int row = first_row + own_first_row() + r;
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
