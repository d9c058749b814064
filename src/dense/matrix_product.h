// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_MATRIX_PRODUCT_H_
#define QKV_DENSE_MATRIX_PRODUCT_H_

#include <type_traits>

#include "dense/product.h"
#include "reference/matmul.h"

// The products of reference/matmul.h, computed by the kernels of attention without threads or
// allocation. Sums have the order of add_product() for any strides.
namespace qkv::dense {

using reference::Matrix;

// The accumulator type of a storage type.
template <class Stored>
using SumOf = std::conditional_t<std::is_same_v<Stored, double>, double, float>;

// out_nm = sum_l a_nl b_lm: a [rows,inner], b [inner,columns], out [rows,columns], all of one type,
// with each sum rounded once. Data that tiles cannot read or write in place goes through scratch
// memory, which grows with rows and columns.
template <class Stored>
class MatrixProduct {
 public:
  using T = SumOf<Stored>;

  Index rows = 0;
  Index inner = 0;
  Index columns = 0;
  Matrix<const Stored> a{};
  Matrix<const Stored> b{};
  Matrix<Stored> out{};

  // The number of elements T of scratch memory that run() needs.
  Index scratch() const { return a_numbers() + b_numbers() + out_numbers(); }
  void run(const Kernels<T>& by, T* scratch, const core::StopPoint& stop) const;

 private:
  static constexpr bool kConverts = !std::is_same_v<Stored, T>;

  bool copies_a() const { return kConverts || (a.col_stride != 1 && inner > 1); }
  bool copies_b() const;
  bool copies_out() const { return kConverts || (out.col_stride != 1 && columns > 1); }
  Index inner_step() const;
  // The elements of scratch memory for copies of a, b and out.
  Index a_numbers() const;
  Index b_numbers() const;
  Index out_numbers() const { return copies_out() ? rows * columns : 0; }
  // The columns l .. l+length-1 of a, in place or copied to scratch, as rows that kernels can read.
  RowsOf<const T> a_piece(const Kernels<T>& by, Index l, Index length, T* scratch) const;
  void add_in_place(const Kernels<T>& by, const RowsOf<const T>& x, Index l, Index length,
                    const RowsOf<T>& y, const core::StopPoint& stop) const
    requires(!kConverts);
  void clear(const RowsOf<T>& y, Index first, Index n) const;
};

}  // namespace qkv::dense

#endif  // QKV_DENSE_MATRIX_PRODUCT_H_
