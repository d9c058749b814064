// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_DEVICE_BIAS_GRADIENTS_H_
#define QKV_CUDA_DEVICE_BIAS_GRADIENTS_H_

#include "cuda/device/arrays.h"
#include "cuda/device/forward_options.h"
#include "cuda/device/forward_place.h"
#include "cuda/device/forward_tiles.h"
#include "cuda/device/gradient_arguments.h"
#include "cuda/device/gradient_shape.h"
#include "cuda/device/gradient_tiles.h"
#include "cuda/device/words.h"

// The gradient of a bias: the sum of the gradients of scores of all heads that read it. A thread
// block computes a tile [queries,keys] of the gradient of one matrix of the bias. It adds the terms
// of the heads in order: by batch entry, then by head.
namespace qkv::cuda {

// ---- the heads that share a matrix --------------------------------------------------------------

// The number of heads, over all batch entries, that share a matrix of the bias: the product of the
// sizes of those axes along which the bias has stride 0.
QKV_DEVICE int readers_of(const ForwardArguments& a, const DeviceArray& bias) {
  int readers = bias.head == 0 ? a.H : 1;
  for (int axis = 0; axis < a.batch_axes; ++axis) {
    if (bias.batch[axis] == 0) readers *= a.batch_sizes[axis];
  }
  return readers;
}

// Sets place.b and place.h to head `n`, counted from 0, of the heads that read matrix `matrix` of
// the bias.
QKV_DEVICE void find_reader(const ForwardArguments& a, const DeviceArray& bias, int matrix, int n,
                            BlockPlace& place) {
  const auto take = [&](int size, std::int64_t stride) {
    if (size == 0) return 0;
    int& rest = stride == 0 ? n : matrix;
    const int at = rest % size;
    rest /= size;
    return at;
  };
  place.h = take(a.H, bias.head);
  place.b = 0;
  int entries = 1;
  for (int axis = a.batch_axes - 1; axis >= 0; --axis) {
    place.b += take(a.batch_sizes[axis], bias.batch[axis]) * entries;
    entries *= a.batch_sizes[axis];
  }
}

// The offset of matrix `matrix` in elements. Axes of size 0 have the stride 0, so nothing is
// divided by 0.
QKV_DEVICE std::int64_t matrix_offset(const ForwardArguments& a, const DeviceArray& bias,
                                      int matrix) {
  std::int64_t offset = 0;
  const auto take = [&](int size, std::int64_t stride) {
    if (stride == 0) return;
    offset += matrix % size * stride;
    matrix /= size;
  };
  take(a.H, bias.head);
  for (int axis = a.batch_axes - 1; axis >= 0; --axis) take(a.batch_sizes[axis], bias.batch[axis]);
  return offset;
}

// ---- the kernel ---------------------------------------------------------------------------------

template <class Shape, class Tiles>
QKV_DEVICE void bias_gradients(const GradientArguments& g) {
  const ForwardArguments& a = g.call;
  const int first_key = block_index() % a.key_blocks * Shape::kKeys;
  const int rest = block_index() / a.key_blocks;
  const int matrix = rest / a.row_blocks;
  BlockPlace place;
  place.Tq = a.Tq;
  place.Tk = a.Tk;
  place.first = rest % a.row_blocks * Shape::kRows;
  const bool has_dout = g.dout.data != nullptr;
  const float factor = exponent_factor<true>(a);
  const int readers = readers_of(a, g.dbias);
  ScoreTile<Shape> sums;
  clear_sums(sums.at);
  QKV_ROLLED
  for (int n = 0; n < readers; ++n) {
    find_reader(a, g.dbias, matrix, n, place);
    place.diagonal = diagonal_of(a, place);
    sync_threads();  // all threads have finished with the previous head
    if (thread_index() == 0) store_option_offsets<Shape>(a, place);
    const BlockBounds bounds = find_bounds<Shape>(a, place);
    if (bounds.last_end <= first_key || bounds.first_begin >= first_key + Shape::kKeys) continue;
    const int key_head = key_head_of(a, place);
    const auto load = [&]<int kRows>(std::uint32_t tile, const DeviceArray& x, int head, int first,
                                     int end, int width) {
      load_rows<Shape, kRows>(tile, rows_of(a, x, place.b, head, 0), first, end, width);
    };
    load.template operator()<Shape::kRows>(Shape::kQ, a.q, place.h, place.first, place.Tq, a.D);
    load.template operator()<Shape::kKeys>(Shape::kK, a.k, key_head, first_key, place.Tk, a.D);
    if (has_dout) {
      load.template operator()<Shape::kRows>(Shape::kDout, g.dout, place.h, place.first, place.Tq,
                                             a.E);
      load.template operator()<Shape::kKeys>(Shape::kV, a.v, value_head_of(a, key_head), first_key,
                                             place.Tk, a.E);
    }
    stage_options<Shape>(a, place, first_key);
    commit_copies();
    const GradientRows<Shape> rows = load_gradient_rows<Shape>(a, place, factor);
    ScoreTile<Shape> w, ds;
    wait_copies<0>();
    sync_threads();  // the copies of all threads have arrived
    multiply_both<Shape, Tiles>(has_dout, w, ds);
    make_gradients<Shape, false>(a, place, is_inside<Shape>(place, bounds, first_key), first_key,
                                 rows, factor, w, ds);
    for_each_score<Shape>(ds, [&](int r, int m, int e, float& x) {
      float& sum = sums.at[r / 2][m][r % 2 * 2 + e];
      sum = rounded_sum(sum, x);
    });
  }
  const std::int64_t begin = matrix_offset(a, g.dbias, matrix);
  for_each_pair<Shape>([&](int m, int half, int n, int row, int j) {
    const int i = place.first + row;
    QKV_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (i >= place.Tq || first_key + j + e >= place.Tk) continue;
      store_real(g.dbias, g.adds, begin + i * g.dbias.row + (first_key + j + e) * g.dbias.col,
                 sums.at[m][n][2 * half + e]);
    }
  });
}

}  // namespace qkv::cuda

#endif  // QKV_CUDA_DEVICE_BIAS_GRADIENTS_H_
