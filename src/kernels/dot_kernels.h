// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_KERNELS_DOT_KERNELS_H_
#define QKV_KERNELS_DOT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include <qkv/dtype.h>
#include <qkv/view.h>

#include "core/order.h"
#include "core/philox.h"
#include "core/storage.h"
#include "kernels/target.h"

// The loops of dot-product attention for one CPU target, on plain pointers: no threads, no
// allocation, no failure. T is float or double. Every sum keeps the order of core/order.h; on
// targets with fused multiply-adds (all but SSE4) scores are bit-identical with the reference's.
namespace qkv::kernels {

// The number of keys of a packed panel. A panel is K transposed, [D][kPanel], with zeros behind the
// last key.
inline constexpr Index kPanel = core::kPartialSums;

// The number of query rows of a register tile. The sums of a tile take 24 of the 32 registers of
// AVX-512 (6 rows of 4) or 12 of the 16 of AVX2 and SSE4 (6 rows of 2); the others hold operands.
inline constexpr Index kTileRows = 6;

// Rows of contiguous elements: row r begins at data[r * stride].
template <class T>
struct RowsOf {
  T* data = nullptr;
  Index stride = 0;
};

// Rows as they are stored: contiguous channels of a type for which is_read_in_place() is true. Rows
// of q8 have a multiple of 32 channels.
struct StoredRows {
  const void* data = nullptr;
  DType dtype = DType::kNone;
  Index stride = 0;  // in elements; for q8, in numbers

  StoredRows() = default;
  StoredRows(const void* first, DType type, Index row_stride)
      : data(first), dtype(type), stride(row_stride) {}
  template <class T>
  StoredRows(const RowsOf<const T>& rows)  // NOLINT(google-explicit-constructor)
      : data(rows.data), dtype(dtype_of<T>), stride(rows.stride) {}
  StoredRows row(Index n) const {
    return {static_cast<const std::byte*>(data) + core::bytes_of(dtype, n * stride), dtype, stride};
  }
};

// Whether loops for T read rows of this type without a copy.
template <class T>
constexpr bool is_read_in_place(DType type) {
  if (type == dtype_of<T>) return true;
  return dtype_of<T> == DType::kFloat32 &&
         (type == DType::kBFloat16 || type == DType::kFloat16 || type == DType::kQ8);
}

// The bytes of a cache line.
inline constexpr Index kLine = 64;
// Rows that a loop prefetches while it reads other rows: row n of these while it reads its row n.
struct ReadAhead {
  const std::byte* data = nullptr;
  Index stride = 0;  // in bytes
  Index bytes = 0;   // of a row; 0 if there is nothing to prefetch
};

// Softmax states of rows, without weighted sums: arrays with an element per row. sum is sum_j
// exp(s_j - max) over the row's scores so far; NaN marks a row with an unmasked score of NaN or
// +inf.
template <class T>
struct PartialSoftmax {
  T* max = nullptr;
  T* sum = nullptr;
};

// A row of scores whose weights, exp(s_n - max) / sum, are summed. log_sum is ln(sum), which only
// the entropy needs.
template <class T>
struct SummedRow {
  const T* s = nullptr;
  T max = T(0);
  T sum = T(1);
  T log_sum = T(0);
};

// The sums to which weights of rows are added: columns_n += w_n; unless null also cells_n += w_n
// and entropy[r] = -sum_n w_n ln(w_n), in partial sums by n mod kPanel that are added as a tree.
template <class T>
struct WeightSums {
  T* columns = nullptr;
  T* cells = nullptr;
  T* entropy = nullptr;
};

template <class T>
struct DotKernels {
  // Packs keys: panel[c][n] = k_nc for n < keys <= kPanel, 0 for n >= keys.
  void (*pack_panel)(const StoredRows& k, Index keys, Index D, T* panel);
  // Computes s_rn = scale * q_r . k_n for a panel's keys and any number of rows: D >= 1 channels,
  // summed in the order of this table's products (core/bfloat16_products.h).
  void (*scores)(const RowsOf<const T>& q, Index rows, Index D, const T* panel, T scale,
                 const RowsOf<T>& s);
  // Computes `scores` of only the first `keys` keys of the panel, in whole registers of at most 16
  // scores. Scores behind these registers may be written, too.
  void (*scores_of_keys)(const RowsOf<const T>& q, Index rows, Index D, const T* panel, Index keys,
                         T scale, const RowsOf<T>& s);
  // Computes `scores` of any number of keys as they are stored, for few rows: keys are transposed
  // in registers. It writes whole registers of scores.
  void (*stored_scores)(const RowsOf<const T>& q, Index rows, Index D, const StoredRows& k,
                        Index keys, T scale, const RowsOf<T>& s, const ReadAhead& ahead);
  // Computes s_n = cap tanh(s_n / cap), as detail::capped (qkv/soft_cap.h); slopes_n, if given, are
  // multiplied by the derivative. Processes whole registers of at most 16 numbers.
  void (*soft_cap)(T* s, T* slopes, T cap, Index n);
  // s_n += bias_n; -inf where bias_n is -inf.
  void (*add_bias)(T* s, const T* bias, Index n);
  // s_n -= slope * |distance + n|.
  void (*subtract_distance)(T* s, T slope, Index distance, Index n);
  // s_n = -inf where allowed_n is 0.
  void (*mask)(T* s, const std::uint8_t* allowed, Index n);
  // In each row, replaces the scores s of n keys (a multiple of 16) by exp(s - max), or by 0 if s
  // is -inf (masked) or s - max < least; returns the rows' max and sum. `least` is
  // core::kLeastExponent for weights of attention, else core::kNormalExponent.
  void (*softmax)(const RowsOf<T>& s, Index rows, Index n, T least, T* max, T* sum);
  // Merges the chunk states of n rows into the total; total_factor and chunk_factor are the factors
  // of the weighted sums.
  void (*merge)(Index n, const PartialSoftmax<T>& total, const PartialSoftmax<const T>& chunk,
                T* total_factor, T* chunk_factor);
  // Computes acc_rc += sum_n w_rn v_nc, n ascending, for all E channels and any number of rows
  // (with two-way dot products at most kTileRows).
  void (*weighted_sum)(const RowsOf<const T>& w, Index rows, const RowsOf<const T>& v, Index keys,
                       Index E, const RowsOf<T>& acc);
  // Computes weighted_sum with values as they are stored: of q8 for any number of rows, of other
  // types for up to kTileRows.
  void (*stored_sum)(const RowsOf<const T>& w, Index rows, const StoredRows& v, Index keys, Index E,
                     const RowsOf<T>& acc, const ReadAhead& ahead);
  // Computes y_rc += sum_n x_rn w_nc, for 1..kTileRows rows and all columns: the sum starts from
  // zero, n ascends.
  void (*add_product)(const RowsOf<const T>& x, Index rows, const RowsOf<const T>& w, Index terms,
                      Index columns, const RowsOf<T>& y);
  // total_c = total_c * total_factor + chunk_c * chunk_factor.
  void (*merge_row)(T* total, T total_factor, const T* chunk, T chunk_factor, Index E);
  // Converts rows of stored values to T.
  void (*widen)(const StoredRows& x, Index rows, Index width, const RowsOf<T>& to);
  // Rounds n weights, a multiple of kPanel, to BF16, joined two to a word; `to` may be `w`, or
  // before it. Null except for products of BF16 (kernels/dot2_kernels.h).
  void (*round_weights)(const T* w, Index n, T* to) = nullptr;
  // Joins the values of neighbouring keys in words. Null except for products of BF16.
  void (*join_values)(const StoredRows& v, Index keys, Index E, const RowsOf<T>& to) = nullptr;
  // Whether one of n values, a multiple of 16, is NaN.
  bool (*has_nan)(const T* x, Index n);
  // to_n = x_n * factor.
  void (*scale_row)(const T* x, T factor, Index n, T* to);
  // to_n = (x_n + 0) * factor: a sum that underflowed to -0 becomes +0, as it does in a merge.
  void (*result_row)(const T* x, T factor, Index n, T* to);
  // w_n = exp(s_n - max) / sum, 0 for -inf and where s_n - max < least. `w` may be `s`.
  void (*weights)(const T* s, Index n, T least, T max, T sum, T* w);
  // Adds the weights of 1..kTileRows rows, in order, for n keys, a multiple of kPanel.
  void (*sum_weights)(const SummedRow<T>* rows, Index count, Index n, const WeightSums<T>& to);
  // to_n = x_n / by. `to` may be `x`.
  void (*divide)(const T* x, T by, Index n, T* to);
  // w_n = 0 where key j0 + n is dropped; j0 and n are multiples of kPanel.
  void (*drop)(T* w, const core::DropoutRow& row, Index j0, Index n);
  // For measuring: runs `rounds` times 24 (on AVX-512, else 12) independent multiply-adds of full
  // registers, or 4 products of tiles. Returns the number of floating-point operations: two for
  // each multiply-add of two numbers.
  double (*multiply_adds)(Index rounds);
};

// The kernels of a target for which is_supported() is true.
template <class T>
const DotKernels<T>& dot_kernels(Target target) noexcept;

}  // namespace qkv::kernels

#endif  // QKV_KERNELS_DOT_KERNELS_H_
