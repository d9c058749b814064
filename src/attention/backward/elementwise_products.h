// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_ELEMENTWISE_PRODUCTS_H_
#define QKV_ATTENTION_BACKWARD_ELEMENTWISE_PRODUCTS_H_

#include <algorithm>
#include <cstdint>

#include "attention/backward/key_gradients.h"
#include "attention/backward/query_gradients.h"

namespace qkv::attn {

// Computes the products w^T dout, ds^T q and ds k of step 2 (backward.h), which KeyGradients and
// QueryGradients otherwise compute, if pairs.need_elementwise(): pair by pair, in the same order of
// terms. Masked pairs are skipped, because their zeros times NaN or infinity would be NaN.
template <class T>
class ElementwiseProducts {
 public:
  template <class AnyArena>
  ElementwiseProducts(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call), k_(call.dot.kernels), g_(call.kernels) {
    const Index width = std::max(call.p.Dk, call.p.E);
    sum_ = arena.template take<T>(width).data();
    if (call.dot.in_words) value_ = arena.template take<T>(width).data();
    if (call.dot.products == Products::kAmx) chains_ = arena.template take<T>(2 * width).data();
  }

  void add(const GradientPairs<T>& pairs, const GradientScores<T>& scores, QueryGradients<T>& to);
  void add(const GradientPairs<T>& pairs, const GradientScores<T>& scores, KeyGradients<T>& to);

 private:
  static bool is_live(const GradientPairs<T>& pairs, Index r, Index n) {
    return pairs.is_live(r / kTileRows) && pairs.live_pairs(r)[n] != 0;
  }
  // Begins sums over rows from row `begin` on, which are added to `to` up to end_sums(). Both
  // functions do nothing without AMX products.
  void begin_sums(Index begin, Index width, T* to) {
    if (call_.dot.products != Products::kAmx) return;
    amx_ = core::AmxSums<T>(chains_, width);
    amx_.begin(begin, to);
  }
  void end_sums() {
    if (call_.dot.products == Products::kAmx) amx_.end();
  }
  // Adds weight * row n to `to`. With products of BF16, each row of `rows` holds the words of two
  // rows.
  void add_row(const RowsOf<const T>& rows, Index n, const T* weight, Index width, T* to) {
    if (call_.dot.products == Products::kAmx) {
      return add_to_step(rows.data + n / 2 * rows.stride, n, *weight, width);
    }
    if (call_.dot.in_words)
      return add_alone(rows.data + n / 2 * rows.stride, n, *weight, width, to);
    k_.weighted_sum({weight, 1}, 1, {rows.data + n * rows.stride, 1}, 1, width, {to, width});
  }
  void add_to_step(const T* words, Index n, T weight, Index width);
  void add_alone(const T* words, Index n, T weight, Index width, T* to);
  void add_column(const GradientPairs<T>& pairs, const T* weights, const RowsOf<const T>& rows,
                  Index n, Index width, T* to);

  const FusedGradientCall<T>& call_;
  const kernels::DotKernels<T>& k_;
  const kernels::GradientKernels<T>& g_;
  T* sum_ = nullptr;     // [max(Dk, E)]: the sum of add_column for one key
  T* chains_ = nullptr;  // [2][max(Dk, E)]: with AMX products, scratch of amx_
  core::AmxSums<T> amx_;
  T* value_ = nullptr;  // [max(Dk, E)]: with products of BF16, one row as numbers or words
};

template <class T>
void ElementwiseProducts<T>::add(const GradientPairs<T>& pairs, const GradientScores<T>& scores,
                                 QueryGradients<T>& to) {
  for (Index t = 0; t < pairs.queries.tiles(); ++t) {
    if (!pairs.is_live(t)) continue;
    const KeyRange keys = pairs.keys_of(t);
    const Index end = std::min(keys.end, pairs.keys.count());
    for (Index r = pairs.queries.tile_begin(t); r < pairs.queries.tile_end(t); ++r) {
      call_.dot.stop();
      const std::uint8_t* const live = pairs.live_pairs(r);
      const T* const ds = scores.gradients(r);
      T* const dq = to.dq(r);
      begin_sums(keys.begin, call_.p.Dk, dq);
      core::for_each_term(call_.dot.products, keys.begin, end, [&](Index n) {
        if (live[n] != 0) add_row(pairs.keys.rows(), n, ds + n, call_.p.Dk, dq);
      });
      end_sums();
    }
  }
}

template <class T>
void ElementwiseProducts<T>::add(const GradientPairs<T>& pairs, const GradientScores<T>& scores,
                                 KeyGradients<T>& to) {
  const GradientQueries<T>& queries = pairs.queries;
  for (Index n = 0; n < pairs.keys.count(); ++n) {
    if (call_.sums_values()) {
      add_column(pairs, scores.weights(0), queries.dout_for_query_sums(), n, call_.p.E, to.dv(n));
    }
    if (call_.multiplies_keys()) {
      add_column(pairs, scores.gradients(0), queries.q_for_query_sums(), n, call_.p.Dk, to.dk(n));
    }
    for (Index r = 0; r < queries.count() && !to.is_live(n); ++r) {
      if (is_live(pairs, r, n)) to.set_live(n);
    }
  }
}

// Computes the sum of the queries' rows weighted by column n of `weights`, starting from zero, and
// adds it to `to`.
template <class T>
void ElementwiseProducts<T>::add_column(const GradientPairs<T>& pairs, const T* weights,
                                        const RowsOf<const T>& rows, Index n, Index width, T* to) {
  call_.dot.stop();
  std::fill_n(sum_, width, T(0));
  begin_sums(0, width, sum_);
  core::for_each_term(call_.dot.products, 0, pairs.queries.count(), [&](Index r) {
    if (is_live(pairs, r, n)) add_row(rows, r, weights + r * kGradientStride + n, width, sum_);
  });
  end_sums();
  g_.add(to, sum_, width);
}

// Adds weight * row n to the current step of AMX products. Each of `words` holds a BF16 number of
// row n.
template <class T>
void ElementwiseProducts<T>::add_to_step(const T* words, Index n, T weight, Index width) {
  for (Index c = 0; c < width; ++c) value_[c] = half_of_word(words[c], n % 2);
  amx_.add(n, rounded_weight(weight), value_);
}

// Adds weight * row n to `to`. Each of `words` holds a BF16 number of row n, and one of the
// neighbouring row, which may be NaN and is left out.
template <class T>
void ElementwiseProducts<T>::add_alone(const T* words, Index n, T weight, Index width, T* to) {
  T factor[kPanel] = {weight};
  k_.round_weights(factor, kPanel, factor);
  for (Index c = 0; c < width; ++c) value_[c] = word_of_half(words[c], n % 2 != 0);
  k_.weighted_sum({factor, 1}, 1, {value_, width}, 1, width, {to, width});
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_ELEMENTWISE_PRODUCTS_H_
