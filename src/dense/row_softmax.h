// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_ROW_SOFTMAX_H_
#define QKV_DENSE_ROW_SOFTMAX_H_

#include <limits>

#include "core/order.h"
#include "core/stop.h"
#include "dense/matrix_product.h"
#include "dense/product.h"

// The softmax of rows by the kernels of attention, in the order of reference/softmax.h, without
// threads or allocation.
namespace qkv::dense {

// A row of `count` numbers x_j at x[j * x_stride], and the array for its softmax. Only the first
// `length` numbers take part; the other results are 0.
template <class Stored>
struct SoftmaxRow {
  const Stored* x = nullptr;
  Stored* out = nullptr;
  Index x_stride = 1;
  Index out_stride = 1;
  Index length = 0;
  Index count = 0;
};

// The softmax state of a piece of a row: its maximum and sum = sum_j exp(x_j - max). The sum is 0
// if all x_j are -inf, and NaN if one is NaN or +inf.
template <class T>
struct ExpSum {
  T max = -std::numeric_limits<T>::infinity();
  T sum = 0;
};

template <class Stored>
class RowSoftmax {
 public:
  using T = SumOf<Stored>;

  explicit RowSoftmax(const Kernels<T>& by) : kernels_(*by.dot) {}

  // The size, in numbers of T, of every `scratch` below.
  static constexpr Index kScratch = 4 * core::kKeyChunk;

  // rows() computes n rows of at most core::kKeyChunk numbers each. For rows of at most `count`
  // numbers, n may be at most rows_together(count).
  static Index rows_together(Index count);
  void rows(const SoftmaxRow<Stored>* rows, Index n, T* scratch) const;

  // Computes one row of any length.
  void row(const SoftmaxRow<Stored>& row, T* scratch, const core::StopPoint& stop) const;

  // The functions below compute one row in parts, which start at multiples of core::kKeyChunk:
  // chunk_sums() computes the sums of the chunks of [begin,end), starting at sums[0]; merge()
  // merges them; put() writes the results [begin,end).
  void chunk_sums(const SoftmaxRow<Stored>& row, Index begin, Index end, ExpSum<T>* sums,
                  T* scratch, const core::StopPoint& stop) const;
  void merge(ExpSum<T>& total, const ExpSum<T>* sums, Index chunks) const;
  void put(const SoftmaxRow<Stored>& row, Index begin, Index end, const ExpSum<T>& total,
           T* scratch, const core::StopPoint& stop) const;

 private:
  const kernels::DotKernels<T>& kernels_;
};

}  // namespace qkv::dense

#endif  // QKV_DENSE_ROW_SOFTMAX_H_
