// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_OPTIONS_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_OPTIONS_H_

#include <algorithm>
#include <limits>

#include "attention/backward/gradient_pairs.h"

namespace qkv::attn {

// Applies options in step 2, row by row of a tile: soft-cap, mods, bias, ALiBi and masks to the
// scores s, dropout and dweights to dw, the derivatives of scores to ds, and dropout to w. It also
// sums ds for dbias, dalibi and the gradients of captured arrays. Its arrays, of a tile of rows,
// belong to the block of keys.
template <class T>
class GradientOptions {
 public:
  template <class AnyArena>
  GradientOptions(const FusedGradientCall<T>& call, AnyArena& arena)
      : call_(call), p_(call.p), k_(call.dot.kernels), g_(call.kernels) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    spare_ = take(2 * kGradientBlock);
    slopes_ = take(kTileRows * kGradientBlock);
    factors_ = take(kTileRows * kGradientBlock);
    if (!call.sums_captured()) return;
    before_mods_ = take(kTileRows * kGradientBlock);
    captured_ = call.captured;
  }

  // Begins the gradients of captured arrays over pairs of a unit's queries and a block of keys.
  void start(const KeyUnit& unit, Index first_key, Index keys) {
    if (!call_.sums_captured()) return;
    expressions::Pairs pairs = expressions::all_pairs(p_, unit.s);
    pairs.H = expressions::heads_spanned(p_, unit.heads);
    pairs.Tk = keys;
    pairs.b = unit.b;
    pairs.h = p_.head_number(unit.first_head);
    pairs.j += first_key;
    captured_.start(pairs);
  }
  // Adds the gradients of captured arrays to `all`, in the order of `number`. Returns false if
  // another task has failed.
  bool deliver(expressions::CapturedGradients& all, Index number) const {
    if (!call_.sums_captured()) return true;
    if (!call_.captured_order.wait(*call_.call, 0, number)) return false;
    captured_.add_to(all);
    call_.captured_order.pass_on(0, number);
    return true;
  }

  // Applies options to row r of tile t before weights are known; s and dw point to the tile's first
  // key.
  void change(GradientPairs<T>& pairs, Index t, Index r, T* s, T* dw) {
    change_scores(pairs, t, r, s);
    change_gradients(pairs, t, r, dw);
  }
  // Whether ds is needed before it is multiplied by the scale.
  bool keep_scale_apart() const { return call_.has_slopes() || call_.sums_score_gradients(); }
  // Applies options to weights and ds of row r, for `count` keys in whole registers; w and ds point
  // to the tile's first key.
  void finish(const GradientPairs<T>& pairs, Index t, Index r, Index count, T* w, T* ds);

  // The parts of dalibi and dbias that the block of keys adds for row r, which is in a live tile.
  T alibi_sum(Index r) const { return alibi_sums_[r]; }
  T bias_sum(Index r) const { return bias_sums_[r]; }

 private:
  T* slopes(const GradientPairs<T>& pairs, Index t, Index r) const {
    return slopes_ + (r - pairs.queries.tile_begin(t)) * kGradientBlock;
  }
  T* before_mods(const GradientPairs<T>& pairs, Index t, Index r) const {
    return before_mods_ + (r - pairs.queries.tile_begin(t)) * kGradientBlock;
  }
  T* factors(const GradientPairs<T>& pairs, Index t, Index r) const {
    return factors_ + (r - pairs.queries.tile_begin(t)) * kGradientBlock;
  }
  void change_scores(GradientPairs<T>& pairs, Index t, Index r, T* s);
  void change_gradients(const GradientPairs<T>& pairs, Index t, Index r, T* dw);
  void add_sums(const GradientPairs<T>& pairs, Index t, Index r, const T* ds);

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  const kernels::GradientKernels<T>& g_;
  T alibi_sums_[kGradientBlock];  // [queries]
  T bias_sums_[kGradientBlock];
  T* spare_ = nullptr;
  T* slopes_ = nullptr;       // [kTileRows][kGradientBlock]
  T* before_mods_ = nullptr;  // [kTileRows][kGradientBlock]: scores before the first mod
  expressions::CapturedGradients captured_;
  T* factors_ = nullptr;  // [kTileRows][kGradientBlock]: 1 / (1 - dropout), or 0 if dropped
};

// Computes the scores of one row as they enter the softmax, -inf where masked, and their slopes.
template <class T>
void GradientOptions<T>::change_scores(GradientPairs<T>& pairs, Index t, Index r, T* s) {
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const KeyRange keys = pairs.keys_of(t);
  const Index count = std::min(keys.end, pairs.keys.count()) - keys.begin;
  T* slopes = nullptr;
  if (call_.has_slopes()) {
    slopes = this->slopes(pairs, t, r);
    std::fill_n(slopes, keys.size(), static_cast<T>(p_.scale));
  }
  if (p_.softcap != 0) k_.soft_cap(s, slopes, static_cast<T>(p_.softcap), count);
  if (call_.sums_captured()) std::copy_n(s, count, before_mods(pairs, t, r));
  call_.dot.before_user_code();
  change_piece<T>({p_, k_, call_.dot.instances, spare_}, pairs.queries.at(r),
                  pairs.keys.first() + keys.begin, count, s, slopes);
  if (pairs.is_partial(t)) k_.mask(s, pairs.live_pairs(r) + keys.begin, count);
  const Index begin = std::clamp(pairs.range(r).begin, keys.begin, keys.end);
  const Index end = std::clamp(pairs.range(r).end, begin, keys.end);
  std::fill(s, s + (begin - keys.begin), kMasked);
  std::fill(s + (end - keys.begin), s + keys.size(), kMasked);
  // Masked keys get slope 0: their ds is 0, and 0 times a slope of NaN would be NaN.
  if (slopes != nullptr) g_.clear_masked(slopes, s, keys.size());
  if (!pairs.need_elementwise()) return;
  std::uint8_t* const live = pairs.live_pairs(r);
  std::fill_n(live, kGradientBlock, std::uint8_t{0});
  for (Index n = 0; n < keys.size(); ++n) {
    live[keys.begin + n] = static_cast<std::uint8_t>(s[n] != kMasked);
  }
}

// Computes dw = z dout . v + dweights of one row, where z are the dropout factors.
template <class T>
void GradientOptions<T>::change_gradients(const GradientPairs<T>& pairs, Index t, Index r, T* dw) {
  const KeyRange keys = pairs.keys_of(t);
  const Index j = pairs.keys.first() + keys.begin;
  const QueryAt at = pairs.queries.at(r);
  if (!call_.multiplies_values()) std::fill_n(dw, keys.size(), T(0));
  if (p_.dropout != 0) {
    T* const z = factors(pairs, t, r);
    std::fill_n(z, keys.size(), T(1) / static_cast<T>(1 - p_.dropout));
    k_.drop(z, p_.dropout_row(at.b, at.h, at.i), j + p_.first_key(), keys.size());
    g_.multiply(dw, z, keys.size());
  }
  call_.add_dweights(at, j, std::min(keys.end, pairs.keys.count()) - keys.begin, dw, spare_);
}

template <class T>
void GradientOptions<T>::finish(const GradientPairs<T>& pairs, Index t, Index r, Index count, T* w,
                                T* ds) {
  if (call_.sums_score_gradients()) add_sums(pairs, t, r, ds);
  if (call_.sums_captured()) {
    const KeyRange keys = pairs.keys_of(t);
    const QueryAt& at = pairs.queries.at(r);
    captured_.add(
        call_.dot.instances,
        {core::place_of(p_, at, pairs.keys.first() + keys.begin), core::lengths_of(p_, at)},
        std::min(keys.end, pairs.keys.count()) - keys.begin, before_mods(pairs, t, r), ds);
  }
  if (call_.has_slopes()) {
    g_.multiply(ds, slopes(pairs, t, r), count);
  } else if (keep_scale_apart()) {
    k_.scale_row(ds, static_cast<T>(p_.scale), count, ds);
  }
  if (p_.dropout != 0) g_.keep(w, factors(pairs, t, r), count);
}

// Adds ds of one row to the gradients of bias and of ALiBi's slope.
template <class T>
void GradientOptions<T>::add_sums(const GradientPairs<T>& pairs, Index t, Index r, const T* ds) {
  const KeyRange keys = pairs.keys_of(t);
  const Index j = pairs.keys.first() + keys.begin;
  const Index count = std::min(keys.end, pairs.keys.count()) - keys.begin;
  const QueryAt at = pairs.queries.at(r);
  if (call_.to.alibi.given()) alibi_sums_[r] = -g_.distance_sum(ds, j - at.i - at.o, count);
  if (call_.sums_bias_rows()) bias_sums_[r] = g_.sum(ds, count);
  if (!call_.sums_bias_keys()) return;
  T* to = call_.own.at(call_.to.bias, at.b, at.h, at.i, j);
  if (call_.stores_bias()) {
    std::copy_n(ds, count, to);
  } else {
    g_.add(to, ds, count);
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_OPTIONS_H_
