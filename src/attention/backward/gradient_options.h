// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_OPTIONS_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_OPTIONS_H_

#include <algorithm>
#include <limits>

#include "attention/backward/gradient_pairs.h"

namespace qkv::attn {

// Applies options in step 2 of the backward pass (backward.h), row by row of a tile: to the scores
// s soft-cap, mods, bias, ALiBi and masks; to dw dropout and dweights; to w dropout; and to ds the
// slopes, the derivatives of scores with respect to q . k (soft-cap, mods and scale). It also sums
// ds for dbias, dalibi and the gradients of captured arrays. Each task has an object of its own.
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

  // Sets the gradients of captured arrays to zero. They will be sums over the pairs of the unit's
  // queries and the keys first_key .. first_key + keys - 1.
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
  // Adds the gradients of captured arrays to `all`; tasks do so in ascending order of `number`.
  // Returns false if another task has failed.
  bool deliver(expressions::CapturedGradients& all, Index number) const {
    if (!call_.sums_captured()) return true;
    if (!call_.captured_order.wait(*call_.call, 0, number)) return false;
    captured_.add_to(all);
    call_.captured_order.pass_on(0, number);
    return true;
  }

  // Applies options to scores s and to dw of row r of tile t, before weights are known. s and dw
  // point to the tile's first key.
  void change(GradientPairs<T>& pairs, Index t, Index r, T* s, T* dw) {
    change_scores(pairs, t, r, s);
    change_weight_gradients(pairs, t, r, dw);
  }
  // Whether ds is computed without the scale, and finish() then multiplies it by slopes or scale.
  bool keep_scale_apart() const { return call_.has_slopes() || call_.sums_score_gradients(); }
  // Applies options to weights w and to ds of row r. w and ds point to the tile's first key;
  // `count` is the tile's number of keys in whole registers.
  void finish(const GradientPairs<T>& pairs, Index t, Index r, Index count, T* w, T* ds);

  // Row r's terms of dalibi, if requested, and of dbias, if sums_bias_rows(), summed over the block
  // of keys. Set for rows in live tiles.
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
  void change_weight_gradients(const GradientPairs<T>& pairs, Index t, Index r, T* dw);
  void add_sums(const GradientPairs<T>& pairs, Index t, Index r, const T* ds);

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  const kernels::GradientKernels<T>& g_;
  T alibi_sums_[kGradientBlock];  // [queries]
  T bias_sums_[kGradientBlock];
  T* spare_ = nullptr;
  T* slopes_ = nullptr;       // [kTileRows][kGradientBlock]: d score / d (q . k), 0 where masked
  T* before_mods_ = nullptr;  // [kTileRows][kGradientBlock]: scores before the first mod
  expressions::CapturedGradients captured_;
  T* factors_ = nullptr;  // [kTileRows][kGradientBlock]: 1 / (1 - dropout), or 0 if dropped
};

// Turns scaled scores of one row into scores that enter the softmax, -inf where masked, and finds
// their slopes. If pairs.need_elementwise(), also sets live_pairs(r).
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

// Turns dout . v of one row into dw = z dout . v + dweights, where z are the dropout factors.
template <class T>
void GradientOptions<T>::change_weight_gradients(const GradientPairs<T>& pairs, Index t, Index r,
                                                 T* dw) {
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

// Sums ds of row r: for dalibi, times minus the distance, in alibi_sums_; for a bias that all keys
// share, in bias_sums_. For any other bias, stores or adds ds in dbias.
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
