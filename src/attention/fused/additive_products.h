// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_ADDITIVE_PRODUCTS_H_
#define QKV_ATTENTION_FUSED_ADDITIVE_PRODUCTS_H_

#include "attention/fused/gradient_block.h"

// The counterpart of the products ds k and ds^T q for the additive score: sums of its derivative
// over pairs.
namespace qkv::attn {

template <class T>
void FusedGradientBlock<T>::additive_products() {
  const AdditiveScores<T>& scores = *call_.dot.additive;
  const Index row = unit_.s.q0 + i0_;
  pairs_.load_queries(q_rows_, rows_, scores.of_queries(unit_.b, h_, row, rows_));
  for (Index column = 0; column < pairs_.columns(); ++column) {
    call_.dot.stop();
    for (Index t = 0; t < tiles(); ++t) {
      if (panels_[t] == 0) continue;
      const Index first = first_row(t);
      const KeyRange keys = keys_of(t);
      const Index end = std::min(keys.end, keys_);
      if (!with_care_) {
        pairs_.add(column, first, rows_of(t), keys.begin, end - keys.begin,
                   {gradients(first) + keys.begin, kGradientStride});
        continue;
      }
      // Live pairs only: 0 times NaN is NaN.
      for (Index r = first; r < first + rows_of(t); ++r) {
        const std::uint8_t* alive = live(r);
        for (Index n = keys.begin; n < end;) {
          const Index stop = std::find(alive + n, alive + end, std::uint8_t{0}) - alive;
          if (n < stop) {
            pairs_.add(column, r, 1, n, stop - n, {gradients(r) + n, kGradientStride});
          }
          n = stop + 1;
        }
      }
    }
  }
  const Index units = scores.units;
  if (call_.to.q.given()) std::fill_n(dq_, rows_ * units, T(0));
  for (Index r = 0; r < rows_; ++r) {
    if (panels_[r / kTileRows] == 0) continue;
    if (call_.to.q.given()) {
      pairs_.left_sums(r, dq_ + r * units);
      // live() is known where it matters: non-finite v takes a careful path.
      const KeyRange keys = keys_of(r / kTileRows);
      const bool any_live = !scores.is_odd(h_) ||
                            std::find(live(r) + keys.begin, live(r) + keys.end, std::uint8_t{1}) !=
                                live(r) + keys.end;
      scores.multiply_by_v(h_, any_live, g_, dq_ + r * units);
    }
  }
  if (call_.sums_v) {
    pairs_.weights(rows_, spare_);
    g_.add(v_sums_, spare_, units);
  }
  if (!call_.to.k.given()) return;
  for (Index n = 0; n < keys_; ++n) {
    pairs_.right_sums(n, spare_);
    g_.add(dk_ + n * units, spare_, units);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_ADDITIVE_PRODUCTS_H_
