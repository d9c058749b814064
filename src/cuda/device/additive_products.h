// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_ADDITIVE_PRODUCTS_H_
#define QKV_CUDA_DEVICE_ADDITIVE_PRODUCTS_H_

#include <cstdint>

#include "cuda/device/additive_arguments.h"
#include "cuda/device/additive_project.h"
#include "cuda/device/additive_shape.h"
#include "cuda/device/arrays.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/thread_sums.h"
#include "cuda/device/words.h"

// Gradients of q, k and the parameters of the additive score, from the gradients dx and dy of
// projections (cuda/device/additive_gradients.h):
//   dq_i = Wq^T dx_i    dWq = sum_i dx_i q_i^T    db = sum_i dx_i    du_u = 2 sum_i units_iu
// where du is the gradient of the parameter v; dk and dWk likewise come from dy and k. For dq, dk
// and matrices one thread adds all terms of a number, ascending, in blocks of 64, with the tiles of
// project(). No sum differs from run to run.
namespace qkv::cuda {

// ---- tiles --------------------------------------------------------------------------------------

// The sums of a row for four units, from quad * 4 on.
QKV_DEVICE FourFloats four_sums(const AdditiveArguments& x, const Projections& sums, int entry,
                                int head, int quad, std::int64_t row) {
  const std::int64_t at = (static_cast<std::int64_t>(entry) * sums.heads + head) * x.quads + quad;
  return reinterpret_cast<const FourFloats*>(sums.data)[at * sums.rows + row];
}

// Whether a row has an unmasked pair: the sums of a row without one are -0. Such a row must add
// nothing to results, whatever other arrays hold.
QKV_DEVICE bool is_live_row(const AdditiveArguments& x, const Projections& sums, int entry,
                            int head, std::int64_t row) {
  return float_to_bits(four_sums(x, sums, entry, head, 0, row).x[0]) != 0x80000000U;
}

// Copies the sums of kChannels units, from quad `first_quad` on, and of 64 rows, from row `first`
// on, to the tile kX, whose rows are the units. Rows from first + count on, and quads beyond the
// last, become 0.
QKV_DEVICE void load_units(const AdditiveArguments& x, const Projections& sums, int entry, int head,
                           int first_quad, std::int64_t first, int count) {
  using Shape = ProjectionShape;
  const int row = thread_index() % Shape::kRows;
  QKV_ROLLED
  for (int quad = thread_index() / Shape::kRows; quad < Shape::kChannels / 4;
       quad += Shape::kThreads / Shape::kRows) {
    FourFloats four{};
    if (row < count && first_quad + quad < x.quads) {
      four = four_sums(x, sums, entry, head, first_quad + quad, first + row);
    }
    QKV_UNROLL
    for (int n = 0; n < 4; ++n) {
      store_shared(Shape::kX + static_cast<std::uint32_t>((quad * 4 + n) * Shape::kPitch + row * 4),
                   float_to_bits(four.x[n]));
    }
  }
}

// Copies the sums of kChannels rows, from row `first` on, and of 64 units, from quad `first_quad`
// on, to the tile kX, which has a row for each of these rows. Rows from first + count on, and quads
// beyond the last, become 0.
QKV_DEVICE void load_unit_rows(const AdditiveArguments& x, const Projections& sums, int entry,
                               int head, int first_quad, std::int64_t first, int count) {
  using Shape = ProjectionShape;
  const int row = thread_index() % Shape::kChannels;
  QKV_ROLLED
  for (int quad = thread_index() / Shape::kChannels; quad < Shape::kUnits / 4;
       quad += Shape::kThreads / Shape::kChannels) {
    FourFloats four{};
    if (row < count && first_quad + quad < x.quads) {
      four = four_sums(x, sums, entry, head, first_quad + quad, first + row);
    }
    Words4 words;
    QKV_UNROLL
    for (int n = 0; n < 4; ++n) words.w[n] = float_to_bits(four.x[n]);
    store_shared(Shape::kX + static_cast<std::uint32_t>(row * Shape::kPitch + quad * 16), words);
  }
}

// Copies kChannels rows of a matrix and 64 of its columns, from c0 on, to the tile kW. Rows from
// `count` on, those for which takes(row) is false, and columns from `width` on become 0.
template <class Takes>
QKV_DEVICE void load_matrix_rows(const float* x, std::int64_t row_stride, std::int64_t col_stride,
                                 int count, int c0, int width, const Takes& takes) {
  using Shape = ProjectionShape;
  const int c = thread_index() % Shape::kUnits;
  QKV_ROLLED
  for (int row = thread_index() / Shape::kUnits; row < Shape::kChannels;
       row += Shape::kThreads / Shape::kUnits) {
    float value = 0;
    if (row < count && c0 + c < width && takes(row))
      value = x[row * row_stride + (c0 + c) * col_stride];
    store_shared(Shape::kW + static_cast<std::uint32_t>(row * Shape::kPitch + c * 4),
                 float_to_bits(value));
  }
}

QKV_DEVICE int blocks_of_64(int size) { return (size + 63) / 64; }

// The head of k from which head `right_head` of the projected keys was computed.
QKV_DEVICE int key_head_of_right(const AdditiveArguments& x, int right_head) {
  return static_cast<int>(static_cast<std::int64_t>(right_head) * x.call.G / x.right.heads);
}

// ---- rows ---------------------------------------------------------------------------------------

// Computes 64 rows and 64 channels of dq or dk. dk sums over the heads of projected keys that were
// computed from its key head, ascending, and in each head over units.
QKV_DEVICE void additive_gradients_rows(const AdditiveGradientArguments& g) {
  using Shape = ProjectionShape;
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  const bool is_key = block_index() >= g.query_blocks;
  const DeviceArray& to = is_key ? g.dk : g.dq;
  const DeviceArray& w = is_key ? x.wk : x.wq;
  const Projections& sums = is_key ? g.dright : g.dleft;
  const int width = is_key ? a.D : x.Dq;
  const int heads = is_key ? a.G : a.H;
  const int row_blocks = is_key ? a.key_blocks : a.row_blocks;
  const int channel_blocks = blocks_of_64(width);

  int rest = block_index() - (is_key ? static_cast<int>(g.query_blocks) : 0);
  const int c0 = rest % channel_blocks * 64;
  rest /= channel_blocks;
  int row_block = rest % row_blocks;
  rest /= row_blocks;
  BlockPlace place;
  place.h = rest % heads;
  place.b = rest / heads;
  place.Tq = a.Tq;
  place.Tk = a.Tk;
  const int entry = place.b;  // of `sums`; 0 if sequences are packed
  if (a.starts_q.data != nullptr) {
    const bool found = is_key ? find_sequence<Shape::kRows>(a, a.starts_k, a.Tk, row_block, place)
                              : find_sequence<Shape::kRows>(a, a.starts_q, a.Tq, row_block, place);
    if (!found) return;
  }
  const int count = (is_key ? place.Tk : place.Tq) - row_block * Shape::kRows;
  const std::int64_t first =
      (is_key ? place.k0 : place.q0) + std::int64_t{row_block} * Shape::kRows;
  const int group = is_key ? sums.heads / a.G : 1;

  OwnProducts total, sum;
  clear_products(total);
  clear_products(sum);
  QKV_ROLLED
  for (int h = place.h * group; h < (place.h + 1) * group; ++h) {
    bool is_live[kProductRows];
    QKV_UNROLL
    for (int r = 0; r < kProductRows; ++r) {
      const int row = own_first_row() + r;
      is_live[r] = row < count && is_live_row(x, sums, entry, h, first + row);
    }
    QKV_ROLLED
    for (int u0 = 0; u0 < x.U; u0 += Shape::kChannels) {
      const int units = smaller(x.U - u0, Shape::kChannels);
      sync_threads();  // all threads have finished with the previous tiles
      load_units(x, sums, entry, h, u0 / 4, first, count);
      load_matrix_rows(static_cast<const float*>(w.data) + h * w.head + u0 * w.row, w.row, w.col,
                       units, c0, width, [](int) { return true; });
      sync_threads();
      add_tile_products(units, sum);
      if ((u0 + Shape::kChannels) % kTermBlock == 0 || u0 + Shape::kChannels >= x.U) {
        finish_block(total, sum, is_live);
      }
    }
  }
  const std::int64_t begin = offset_of(a, to, place.b, place.h) + first * to.row;
  QKV_UNROLL
  for (int r = 0; r < kProductRows; ++r) {
    const int row = own_first_row() + r;
    QKV_UNROLL
    for (int n = 0; n < kProductUnits; ++n) {
      const int c = c0 + own_first_unit() + n;
      if (row >= count || c >= width) continue;
      store_real(to, g.adds, begin + row * to.row + c * to.col, total[r][n]);
    }
  }
}

// ---- matrices -----------------------------------------------------------------------------------

// Computes 64 units and 64 channels of dWq or dWk: sums over batch entries, then heads, then rows,
// all ascending.
QKV_DEVICE void additive_gradients_matrices(const AdditiveGradientArguments& g) {
  using Shape = ProjectionShape;
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  const bool is_key = block_index() >= g.query_matrix_blocks;
  const DeviceArray& to = is_key ? g.dwk : g.dwq;
  const DeviceArray& from = is_key ? a.k : a.q;
  const Projections& sums = is_key ? g.dright : g.dleft;
  const int width = is_key ? a.D : x.Dq;
  const int channel_blocks = blocks_of_64(width);

  int rest = block_index() - (is_key ? static_cast<int>(g.query_matrix_blocks) : 0);
  const int c0 = rest % channel_blocks * 64;
  rest /= channel_blocks;
  const int u0 = rest % x.unit_blocks * 64;
  const int head = rest / x.unit_blocks;
  const int end_head = to.head == 0 ? sums.heads : head + 1;
  const bool packed = a.starts_q.data != nullptr;

  OwnProducts total, sum;
  clear_products(total);
  clear_products(sum);
  BlockPlace place;
  QKV_ROLLED
  for (place.b = 0; place.b < a.B; ++place.b) {
    place.Tq = a.Tq;
    place.Tk = a.Tk;
    if (packed) find_rows(a, place);
    const int rows = is_key ? place.Tk : place.Tq;
    const std::int64_t first = is_key ? place.k0 : place.q0;
    QKV_ROLLED
    for (int h = head; h < end_head; ++h) {
      const float* const data = static_cast<const float*>(from.data) +
                                offset_of(a, from, place.b, is_key ? key_head_of_right(x, h) : h) +
                                first * from.row;
      QKV_ROLLED
      for (int r0 = 0; r0 < rows; r0 += Shape::kChannels) {
        const int count = smaller(rows - r0, Shape::kChannels);
        sync_threads();  // all threads have finished with the previous tiles
        const int entry = packed ? 0 : place.b;
        load_unit_rows(x, sums, entry, h, u0 / 4, first + r0, count);
        load_matrix_rows(data + r0 * from.row, from.row, from.col, count, c0, width,
                         [&](int row) { return is_live_row(x, sums, entry, h, first + r0 + row); });
        sync_threads();
        add_tile_products(count, sum);
        if ((r0 + Shape::kChannels) % kTermBlock == 0 || r0 + Shape::kChannels >= rows) {
          finish_block(total, sum);
        }
      }
    }
  }
  QKV_UNROLL
  for (int r = 0; r < kProductRows; ++r) {
    const int u = u0 + own_first_row() + r;
    QKV_UNROLL
    for (int n = 0; n < kProductUnits; ++n) {
      const int c = c0 + own_first_unit() + n;
      if (u >= x.U || c >= width) continue;
      store_real(to, g.adds, head * to.head + u * to.row + c * to.col, total[r][n]);
    }
  }
}

// ---- vectors ------------------------------------------------------------------------------------

// Computes four units of the gradient of v or b. Each thread sums every 128th row of each batch
// entry and head in float64, ascending; sums of threads are then added in pairs.
QKV_DEVICE void additive_gradients_units(const AdditiveGradientArguments& g) {
  static_assert(UnitShape::kThreads == kSummingThreads);
  const AdditiveArguments& x = g.pairs;
  const ForwardArguments& a = x.call;
  const bool is_bias = block_index() >= g.unit_vector_blocks;
  const DeviceArray& to = is_bias ? g.db : g.du;
  const Projections& sums = is_bias ? g.dleft : g.units;
  const int block = block_index() - (is_bias ? static_cast<int>(g.unit_vector_blocks) : 0);
  const int quad = block % x.quads;
  const int head = block / x.quads;
  const int end_head = to.head == 0 ? a.H : head + 1;
  const bool packed = a.starts_q.data != nullptr;
  double sum[4] = {};
  BlockPlace place;
  QKV_ROLLED
  for (place.b = 0; place.b < a.B; ++place.b) {
    place.Tq = a.Tq;
    if (packed) find_rows(a, place);
    QKV_ROLLED
    for (int h = head; h < end_head; ++h) {
      QKV_ROLLED
      for (int i = thread_index(); i < place.Tq; i += kSummingThreads) {
        const FourFloats four = four_sums(x, sums, packed ? 0 : place.b, h, quad, place.q0 + i);
        QKV_UNROLL
        for (int n = 0; n < 4; ++n) sum[n] += static_cast<double>(four.x[n]);
      }
    }
  }
  QKV_UNROLL
  for (int n = 0; n < 4; ++n) {
    sync_threads();  // all threads have finished with the previous sum
    const double all = sum_of_threads(sum[n]);
    const int u = quad * 4 + n;
    if (thread_index() > 0 || u >= x.U) continue;
    // `units` are sums of g (1/2 - r), and tanh = 2 (1/2 - r): cuda/device/additive_gradients.h.
    const auto number = static_cast<float>(is_bias ? all : 2 * all);
    store_real(to, g.adds, head * to.head + u * to.col, number);
  }
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_ADDITIVE_PRODUCTS_H_
