// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_NON_FINITE_VALUES_H_
#define QKV_ATTENTION_FORWARD_NON_FINITE_VALUES_H_

#include <algorithm>
#include <limits>

#include "attention/forward/softmax_state.h"
#include "attention/tiles/key_set.h"
#include "core/floats.h"

namespace qkv::attn {

// Finds the keys of a chunk whose value is non-finite (NaN or infinite in some channel), and adds
// such values to the weighted sums of only those rows that attend to their keys: the weight of a
// masked key is 0, but 0 times NaN or infinity is NaN. Values are searched only if a sum is NaN in
// this chunk (docs/performance.md#non-finite-values) or was in an earlier one. A live key, panel or
// tile has an unmasked query-key pair.
template <class T>
class NonFiniteValues {
 public:
  template <class AnyArena>
  NonFiniteValues(const FusedCall<T>& call, AnyArena& arena)
      : call_(call), p_(call.p), k_(call.kernels), width_(call.padded_width()) {
    if (call.products == Products::kAmx || (call.reads_values && p_.v.dtype != dtype_of<T>)) {
      row_ = arena.template take<T>(width_).data();
    }
    if (call.products == Products::kAmx) {
      amx_ = core::AmxSums<T>(arena.template take<T>(2 * width_).data(), p_.E);
    }
  }

  // Begins a chunk. The value of its key n is row first_key() + n of `rows` and, unless values are
  // read as they are stored or are words of two keys, row n of `values`.
  void begin_chunk(const StoredRows& values, const core::HeadRows& rows) {
    values_ = values;
    rows_ = rows;
    found_ = {};
    has_looked_ = false;
  }
  // Whether sums of a chunk so far had a NaN, so that later chunks are searched before their sums.
  bool are_expected() const { return are_expected_; }
  bool has_looked() const { return has_looked_; }
  const KeySet& found() const { return found_; }
  // Searches, once per chunk, the values of the keys that interval masks allow some row.
  void look(const BlockScores<T>& scores);
  void expect() { are_expected_ = true; }

  // Called before the sums of two tiles.
  void begin_tiles() { ambiguous_ = 0; }
  // Whether sums of tile t have to be recomputed by sum_elementwise().
  bool is_ambiguous(Index t) const { return (ambiguous_ >> t % kTilesAtOnce & 1U) != 0; }

  // Adds keys begin .. end-1 (one step of the products, in which a key has a non-finite value) to
  // the sums `to` of tile t's rows.
  void add(const BlockScores<T>& scores, Index t, Index begin, Index end, T* to);
  // Recomputes the sums of tile t key by key, without masked keys.
  void sum_elementwise(BlockScores<T>& scores, SoftmaxState<T>& state, Index t);

 private:
  bool is_non_finite(const BlockScores<T>& scores, Index n) const;
  void add_value(const BlockScores<T>& scores, Index n, const T* weight, T* row) const;
  void add_rounded(Index key, T weight, T* row) const;
  void add_step(const BlockScores<T>& scores, Index t, Index begin, Index end, T* to);
  void add_to_step(Index key, Index n, T weight);

  const FusedCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  Index width_ = 0;
  StoredRows values_;
  core::HeadRows rows_;
  KeySet found_;
  bool has_looked_ = false;
  bool are_expected_ = false;
  unsigned ambiguous_ = 0;  // bit n: whether the n-th of the two tiles is_ambiguous
  T* row_ = nullptr;        // [padded E]: a widened value
  core::AmxSums<T> amx_;
};

template <class T>
void NonFiniteValues<T>::look(const BlockScores<T>& scores) {
  if (has_looked_) return;
  has_looked_ = true;
  const KeyRange keys = call_.reads_values ? scores.stored() : scores.live_keys();
  for (Index n = keys.begin; n < keys.end; ++n) {
    if (n % kPanel == 0) call_.stop();
    if (is_non_finite(scores, n)) found_.insert(n);
  }
}

template <class T>
bool NonFiniteValues<T>::is_non_finite(const BlockScores<T>& scores, Index n) const {
  if (call_.in_words) {
    const Index offset = rows_.offset(scores.first_key() + n);
    bool non_finite = false;
    for (Index c = 0; c < p_.E; ++c) {
      non_finite |=
          (bfloat16_at(p_.v, offset, c).bits & core::kInfinityBFloat16) == core::kInfinityBFloat16;
    }
    return non_finite;
  }
  const StoredRows row = call_.reads_values ? scores.reads().values(n) : values_.row(n);
  if (row.dtype == dtype_of<T>) return !core::are_finite(static_cast<const T*>(row.data), p_.E);
  k_.widen(row, 1, p_.E, {row_, width_});
  return !core::are_finite<T>(row_, p_.E);
}

// The second key of a word is added first (core/bfloat16_products.h). If masks let a row attend to
// a non-finite value whose weight is 0, only the score tells whether the pair is masked (a score of
// -inf) or not (the weight was rounded to 0 or dropped): the tile is ambiguous.
template <class T>
void NonFiniteValues<T>::add(const BlockScores<T>& scores, Index t, Index begin, Index end, T* to) {
  if (call_.products == Products::kAmx) return add_step(scores, t, begin, end, to);
  const QueryRows<T>& queries = scores.queries;
  for (Index n = end - 1; n >= begin; --n) {
    for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
      if (found_.contains(n) && !scores.may_see(r, n)) continue;
      T* const row = to + (r - queries.tile_begin(t)) * width_;
      const T weight =
          call_.in_words ? half_of_word(scores.row(r)[n / 2], n % 2) : scores.row(r)[n];
      if (weight == 0) {
        if (found_.contains(n)) ambiguous_ |= 1U << t % kTilesAtOnce;
      } else if (call_.in_words) {
        add_rounded(scores.first_key() + n, weight, row);
      } else {
        add_value(scores, n, &weight, row);
      }
    }
  }
}

// Adds keys begin .. end-1, a step of AMX products.
template <class T>
void NonFiniteValues<T>::add_step(const BlockScores<T>& scores, Index t, Index begin, Index end,
                                  T* to) {
  const QueryRows<T>& queries = scores.queries;
  for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
    amx_.begin(begin, to + (r - queries.tile_begin(t)) * width_);
    for (Index n = begin; n < end; ++n) {
      if (found_.contains(n) && !scores.may_see(r, n)) continue;
      const T weight = half_of_word(scores.row(r)[n / 2], n % 2);
      if (weight != 0) {
        add_to_step(scores.first_key() + n, n, weight);
      } else if (found_.contains(n)) {
        ambiguous_ |= 1U << t % kTilesAtOnce;
      }
    }
    amx_.end();
  }
}

// Adds weight * (value of the unit's key `key`) as term n of the current step of AMX products.
template <class T>
void NonFiniteValues<T>::add_to_step(Index key, Index n, T weight) {
  const Index offset = rows_.offset(key);
  for (Index c = 0; c < p_.E; ++c) row_[c] = T(core::to_float(bfloat16_at(p_.v, offset, c)));
  amx_.add(n, weight, row_);
}

// Adds weight * v_n to `row`, for key n of the chunk.
template <class T>
void NonFiniteValues<T>::add_value(const BlockScores<T>& scores, Index n, const T* weight,
                                   T* row) const {
  const StoredRows value = call_.reads_values ? scores.reads().values(n) : values_.row(n);
  k_.stored_sum({weight, kScoreStride}, 1, value, 1, p_.E, {row, width_}, {});
}

// Sums over live keys only. The scores are recomputed, since weights do not tell which keys are
// live: a live key's weight may be 0 by rounding or dropout.
template <class T>
void NonFiniteValues<T>::sum_elementwise(BlockScores<T>& scores, SoftmaxState<T>& state, Index t) {
  const QueryRows<T>& queries = scores.queries;
  const KeyRange keys = scores.tile(t).keys;
  scores.compute_again(t);
  for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
    T* const s = scores.row(r);
    scores.soft_cap(r);
    scores.change(r);
    bool live[kKeyChunk];
    for (Index n = keys.begin; n < keys.end; ++n) {
      live[n] = s[n] != -std::numeric_limits<T>::infinity();
    }
    state.weigh_row(scores, r);
    T* const row = state.chunk.acc + r % kRowsAtOnce * width_;
    std::fill(row, row + width_, T(0));
    const Index end = std::min(scores.keys(), keys.end);
    for (Index n = keys.begin; n < end && !call_.in_words; ++n) {
      if (live[n]) add_value(scores, n, s + n, row);
    }
    if (call_.products == Products::kAmx) {
      amx_.begin(keys.begin, row);
      for (Index n = keys.begin; n < end; ++n) {
        if (live[n]) add_to_step(scores.first_key() + n, n, rounded_weight(s[n]));
      }
      amx_.end();
    }
    // The second key of a word is added first: core/bfloat16_products.h.
    for (Index n = keys.begin; n < end && call_.products == Products::kDot2; n += 2) {
      const Index key = scores.first_key() + n;
      if (n + 1 < end && live[n + 1]) add_rounded(key + 1, s[n + 1], row);
      if (live[n]) add_rounded(key, s[n], row);
    }
  }
}

// Adds weight * (value of the unit's key `key`) to `row`, as a word whose other half is 0.
template <class T>
void NonFiniteValues<T>::add_rounded(Index key, T weight, T* row) const {
  T words[kPanel] = {weight};
  k_.round_weights(words, kPanel, words);
  const Index offset = rows_.offset(key);
  if (is_readable<T>(p_.v)) {
    k_.stored_sum({words, 1}, 1, stored_rows(p_.v, offset), 1, p_.E, {row, width_}, {});
    return;
  }
  BFloat16 values[kPanel];
  for (Index c = 0; c < p_.E; c += kPanel) {
    const Index count = std::min(kPanel, p_.E - c);
    for (Index x = 0; x < count; ++x) values[x] = bfloat16_at(p_.v, offset, c + x);
    k_.stored_sum({words, 1}, 1, {values, DType::kBFloat16, 0}, 1, count, {row + c, width_}, {});
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_NON_FINITE_VALUES_H_
