// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_REFERENCE_MATMUL_H_
#define QKV_REFERENCE_MATMUL_H_

#include <algorithm>

#include <qkv/view.h>

#include "core/stop.h"
#include "core/storage.h"
#include "reference/scalar.h"

// Matrix products as plain loops. Faster products give bit-identical results, except on SSE4.
namespace qkv::reference {

// The elements data[0], data[stride], ...
template <class Stored>
struct Vector {
  const Stored* data = nullptr;
  Index stride = 1;
};

// Computes sum_l a_l b_l in T, in the order of a score. The sum may be long: `stop` is polled in
// each block.
template <class T, class A, class B>
T dot(Index count, const Vector<A>& a, const Vector<B>& b, const core::StopPoint& stop) {
  T total{};
  for (Index begin = 0; begin < count; begin += core::kChannelBlock) {
    stop();
    const T sum = sum_of_products<T>(
        std::min(core::kChannelBlock, count - begin),
        [&](Index l) { return core::to_accumulator<T>(a.data[(begin + l) * a.stride]); },
        [&](Index l) { return core::to_accumulator<T>(b.data[(begin + l) * b.stride]); });
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

// A matrix whose element (r, c) is data[r * row_stride + c * col_stride]; a transposed matrix has
// its strides swapped.
template <class Stored>
struct Matrix {
  Stored* data = nullptr;
  Index row_stride = 0;
  Index col_stride = 1;
};

// Computes out_nm = sum_l a_nl b_lm: a [N,L], b [L,M], out [N,M], each sum in T and rounded once.
template <class T, class Stored>
void matmul(Index N, Index M, Index L, const Matrix<const Stored>& a, const Matrix<const Stored>& b,
            const Matrix<Stored>& out, const core::StopPoint& stop) {
  for (Index n = 0; n < N; ++n) {
    const Vector<Stored> row{a.data + n * a.row_stride, a.col_stride};
    for (Index m = 0; m < M; ++m) {
      const Vector<Stored> column{b.data + m * b.col_stride, b.row_stride};
      out.data[n * out.row_stride + m * out.col_stride] =
          core::from_accumulator<Stored>(dot<T>(L, row, column, stop));
    }
  }
}

}  // namespace qkv::reference

#endif  // QKV_REFERENCE_MATMUL_H_
