// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_OUTPUTS_H_
#define QKV_OUTPUTS_H_

#include <concepts>
#include <type_traits>
#include <utility>

#include <qkv/view.h>

// What can be asked of a call of attention().
namespace qkv {

// Rows of a matrix with one row per query: all, or those listed in `rows` [R] (integers).
template <class AnyView>
struct BasicRows {
  ConstView rows{};
  AnyView matrix{};
  BasicRows() = default;
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <class All>
    requires(std::convertible_to<All, AnyView> &&
             !std::same_as<std::remove_cvref_t<All>, BasicRows>)
  BasicRows(All&& all) : matrix(std::forward<All>(all)) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)
  BasicRows(const ConstView& named, const AnyView& m) : rows(named), matrix(m) {}
};
using Rows = BasicRows<View>;
using ConstRows = BasicRows<ConstView>;

// The `count` largest weights (before dropout) of each query, largest first, ties to the lower key;
// if fewer keys are live, the rest is weight 0, key -1.
struct Top {
  Index count = 0;
  View weights{};  // [B,H,Tq,count], accumulator type
  View keys{};     // the same shape, int32 or int64
};

// Weights (before dropout) summed over queries: all, or those listed in `rows` [R] (integers below
// Tq; one listed twice counts twice). Packed: all.
struct ColumnSums {
  ConstView rows{};
  View sums{};
  ColumnSums() = default;
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <class All>
    requires(std::convertible_to<All, View> && !std::same_as<std::remove_cvref_t<All>, ColumnSums>)
  ColumnSums(All&& all) : sums(std::forward<All>(all)) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)
  ColumnSums(const ConstView& named, const View& s) : rows(named), sums(s) {}
};

// Set a buffer to request a result. `out` has q's dtype; keys are integers; all others have the
// accumulator's dtype: float64 for float64 inputs, else float32.
struct Outputs {
  View out{};                // [B,H,Tq,E]
  View lse{};                // [B,H,Tq] natural log of the sum of exponentials, sink included
  View row_max{};            // [B,H,Tq] largest score after masks, sink included
  View entropy{};            // [B,H,Tq] -sum_j w_ij ln w_ij over the keys, before dropout
  ColumnSums column_sums{};  // [B,H,Tk] what each key received: weights summed over queries
  View value_sums{};         // [B,H,Tk] the same sums, over the same queries, times |v_j|
  // [B,H,m,n] for any m, n >= 1: the weights that the queries with floor(i*m/Tq) = row give, on
  // average, to the keys with floor(j*n/Tk) = column together. Packed: B sequences.
  View pooled{};
  Top top{};               //
  Rows weights{};          // [B,H,Tq or R,Tk] before dropout
  Rows dropped_weights{};  // after dropout
  Rows raw_scores{};       // after scale
  Rows capped_scores{};    // after soft-cap
  Rows masked_scores{};    // after mods, bias, ALiBi and masks; -inf where masked
};

// The shapes of a call's results, for allocating buffers: [B,H,Tq,E], [B,H,Tq] and so on, with as
// many axes as the inputs imply; for packed sequences [sum Tq,H,E], [H,sum Tq] and [H,sum Tk], and
// no matrix: its rank is 0.
struct ResultShapes {
  Dims out{};     // rank 0 if v is absent
  Dims rows{};    // of lse, row_max and entropy; top adds an axis of `count`
  Dims keys{};    // of column_sums and value_sums
  Dims matrix{};  // of weights and scores, all rows; pooled has m and n in place of Tq and Tk
};

}  // namespace qkv

#endif  // QKV_OUTPUTS_H_
