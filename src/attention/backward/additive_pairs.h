// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_ADDITIVE_PAIRS_H_
#define QKV_ATTENTION_BACKWARD_ADDITIVE_PAIRS_H_

#include "attention/tiles/additive_scores.h"
#include "attention/tiles/key_units.h"
#include "core/integers.h"
#include "core/order.h"

// Sums over pairs that gradients of the additive score need, for a block of queries and a block of
// keys in step 2 (backward.h). With projections a_iu of query i and b_ju of key j, and
// t = tanh(a_iu + b_ju), d s_ij / d a_iu = d s_ij / d b_ju = v_u (1 - t^2). Arrays are [columns of
// units][rows of the block][kUnitLanes], so that a loop over pairs reads contiguous memory.
namespace qkv::attn {

using kernels::kUnitLanes;
using kernels::RowsOf;

template <class T>
class AdditivePairs {
 public:
  AdditivePairs() = default;
  template <class AnyArena>
  AdditivePairs(const AdditiveScores<T>& scores, AnyArena& arena)
      : scores_(&scores), columns_(core::divide_up(scores.units, kUnitLanes)) {
    for (T** array : {&left_, &left_powers_, &right_, &right_powers_, &sums_.left, &sums_.weights,
                      &sums_.right}) {
      *array = arena.template take<T>(columns_ * kColumn).data();
    }
  }

  Index columns() const { return columns_; }

  // Loads the block of keys, whose rows have the layout of AdditiveScores.
  void load_keys(const RowsOf<const T>& rows, Index count, ExponentialForm form) {
    key_form_ = form;
    keys_ = count;
    load(rows, count, right_, right_powers_);
  }
  // Loads the next block of queries and resets the sums.
  void load_queries(const RowsOf<const T>& rows, Index count, ExponentialForm form) {
    form_ = std::max(form, key_form_);
    load(rows, count, left_, left_powers_);
    for (Index c = 0; c < columns_; ++c) {
      std::fill_n(sums_.left + c * kColumn, count * kUnitLanes, T(0));
      std::fill_n(sums_.weights + c * kColumn, count * kUnitLanes, T(0));
      std::fill_n(sums_.right + c * kColumn, keys_ * kUnitLanes, T(0));
    }
  }
  // Adds the pairs of `rows` queries from r on and `keys` keys from n on to the sums of one column
  // of units. ds of the first pair is at ds.data.
  void add(Index column, Index r, Index rows, Index n, Index keys,
           const RowsOf<const T>& ds) const {
    const Index left = column * kColumn + r * kUnitLanes;
    const Index right = column * kColumn + n * kUnitLanes;
    scores_->kernels->add_pairs(form_, {left_ + left, left_powers_ + left}, rows,
                                {right_ + right, right_powers_ + right}, keys, ds,
                                {sums_.left + left, sums_.weights + left, sums_.right + right});
  }

  // Write, for each unit, sum_j ds_ij (1 - t^2) of query r, or sum_i ds_ij (1 - t^2) of key n.
  void left_sums(Index r, T* to) const { unload(sums_.left, r, to); }
  void right_sums(Index n, T* to) const { unload(sums_.right, n, to); }
  // Writes, for each unit, sum_ij ds_ij t over the first `count` queries: for the gradient of v.
  void v_sums(Index count, T* to) const {
    for (Index c = 0; c < columns_; ++c) {
      T sum[kUnitLanes] = {};
      for (Index r = 0; r < count; ++r) {
        const T* x = sums_.weights + c * kColumn + r * kUnitLanes;
        for (Index lane = 0; lane < kUnitLanes; ++lane) sum[lane] += x[lane];
      }
      std::copy_n(sum, lanes_of(c), to + c * kUnitLanes);
    }
  }

 private:
  static constexpr Index kColumn = core::kGradientBlock * kUnitLanes;

  Index lanes_of(Index c) const { return std::min(kUnitLanes, scores_->units - c * kUnitLanes); }
  void load(const RowsOf<const T>& rows, Index count, T* x, T* powers) const {
    for (Index c = 0; c < columns_; ++c) {
      const T* from = rows.data + c * kUnitLanes;
      load_column(from, rows.stride, count, lanes_of(c), x + c * kColumn);
      if (!scores_->has_powers()) continue;
      load_column(from + scores_->units, rows.stride, count, lanes_of(c), powers + c * kColumn);
    }
  }
  static void load_column(const T* from, Index stride, Index count, Index lanes, T* to) {
    for (Index r = 0; r < count; ++r, from += stride, to += kUnitLanes) {
      if (lanes == kUnitLanes) {
        std::copy_n(from, kUnitLanes, to);
      } else {
        std::fill(std::copy_n(from, lanes, to), to + kUnitLanes, T(0));
      }
    }
  }
  void unload(const T* x, Index row, T* to) const {
    x += row * kUnitLanes;
    for (Index c = 0; c < columns_; ++c, x += kColumn, to += kUnitLanes) {
      if (lanes_of(c) == kUnitLanes) {
        std::copy_n(x, kUnitLanes, to);
      } else {
        std::copy_n(x, lanes_of(c), to);
      }
    }
  }

  const AdditiveScores<T>* scores_ = nullptr;
  Index columns_ = 0;
  Index keys_ = 0;
  ExponentialForm key_form_ = ExponentialForm::kSmall;
  ExponentialForm form_ = ExponentialForm::kSmall;
  T* left_ = nullptr;
  T* left_powers_ = nullptr;
  T* right_ = nullptr;
  T* right_powers_ = nullptr;
  kernels::PairSums<T> sums_;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_ADDITIVE_PAIRS_H_
