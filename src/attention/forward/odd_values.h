// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_ODD_VALUES_H_
#define QKV_ATTENTION_FORWARD_ODD_VALUES_H_

#include <algorithm>
#include <limits>

#include "attention/forward/softmax_state.h"
#include "attention/tiles/key_set.h"
#include "core/finite.h"

namespace qkv::attn {

// The keys of a chunk whose value is odd: NaN or infinite in some channel. It is multiplied by the
// weights of the rows that see the key, and no others. A masked key has weight 0, and 0 times NaN
// or infinity is NaN: so odd values show in the sums, and are looked for from then on
// (docs/decisions/0012).
template <class T>
class OddValues {
 public:
  template <class AnyArena>
  OddValues(const FusedCall<T>& call, AnyArena& arena)
      : call_(call), p_(call.p), k_(call.kernels), width_(call.padded_width()) {
    if (call.reads_values && p_.v.dtype != dtype_of<T>) {
      row_ = arena.template take<T>(width_).data();
    }
  }

  // Begins a chunk. Key n of it has row n of `values`, unless values are read as they are stored,
  // and row first_key + n of `rows`.
  void begin_chunk(const StoredRows& values, const core::HeadRows& rows) {
    values_ = values;
    rows_ = rows;
    found_ = {};
    has_looked_ = false;
  }
  // Whether an earlier chunk had some.
  bool are_expected() const { return are_expected_; }
  bool has_looked() const { return has_looked_; }
  const KeySet& found() const { return found_; }
  // Looks at the values of the keys that some row may see, once per chunk.
  void look(const BlockScores<T>& scores);
  void expect() { are_expected_ = true; }

  // Before the sums of two tiles.
  void begin_tiles() { ambiguous_ = 0; }
  // Whether sums of tile t have to be made again, by sum_with_care().
  bool is_ambiguous(Index t) const { return (ambiguous_ >> t % kTilesAtOnce & 1U) != 0; }

  // Adds keys begin .. end-1, one or a pair with an odd value, to the sums `to` of tile t's rows.
  void add(const BlockScores<T>& scores, Index t, Index begin, Index end, T* to);
  // The sums of tile t, key by key.
  void sum_with_care(BlockScores<T>& scores, SoftmaxState<T>& state, Index t) const;

 private:
  bool is_odd(const BlockScores<T>& scores, Index n) const;
  void add_value(const BlockScores<T>& scores, Index n, const T* weight, T* row) const;
  void add_rounded(Index key, T weight, T* row) const;

  const FusedCall<T>& call_;
  const Problem& p_;
  const kernels::DotKernels<T>& k_;
  Index width_ = 0;
  StoredRows values_;
  core::HeadRows rows_;
  KeySet found_;
  bool has_looked_ = false;
  bool are_expected_ = false;
  unsigned ambiguous_ = 0;  // bit n: the n-th tile at hand
  T* row_ = nullptr;        // [width]
};

template <class T>
void OddValues<T>::look(const BlockScores<T>& scores) {
  if (has_looked_) return;
  has_looked_ = true;
  const KeyRange keys = call_.reads_values ? scores.stored() : scores.live_keys();
  for (Index n = keys.begin; n < keys.end; ++n) {
    if (n % kPanel == 0) call_.stop();
    if (is_odd(scores, n)) found_.insert(n);
  }
}

template <class T>
bool OddValues<T>::is_odd(const BlockScores<T>& scores, Index n) const {
  if (call_.pairs) {
    const Index offset = rows_.offset(scores.first_key() + n);
    bool odd = false;
    for (Index c = 0; c < p_.E; ++c) {
      odd |=
          (bfloat16_at(p_.v, offset, c).bits & core::kInfinityBFloat16) == core::kInfinityBFloat16;
    }
    return odd;
  }
  const StoredRows row = call_.reads_values ? scores.reads().values(n) : values_.row(n);
  if (row.dtype == dtype_of<T>) return !core::are_finite(static_cast<const T*>(row.data), p_.E);
  k_.widen(row, 1, p_.E, {row_, width_});
  return !core::are_finite<T>(row_, p_.E);
}

// The odd key of a pair first: core/bfloat16_pairs.h. Where masks let a row see an odd value and
// the weight is 0, by rounding, dropout or a score of -inf, only the scores tell: the tile is
// ambiguous.
template <class T>
void OddValues<T>::add(const BlockScores<T>& scores, Index t, Index begin, Index end, T* to) {
  const QueryRows<T>& queries = scores.queries;
  for (Index n = end - 1; n >= begin; --n) {
    for (Index r = queries.tile_begin(t); r < queries.tile_end(t); ++r) {
      if (found_.contains(n) && !scores.may_see(r, n)) continue;
      T* const row = to + (r - queries.tile_begin(t)) * width_;
      const T weight = call_.pairs ? half_of_word(scores.row(r)[n / 2], n % 2) : scores.row(r)[n];
      if (weight == 0) {
        if (found_.contains(n)) ambiguous_ |= 1U << t % kTilesAtOnce;
      } else if (call_.pairs) {
        add_rounded(scores.first_key() + n, weight, row);
      } else {
        add_value(scores, n, &weight, row);
      }
    }
  }
}

// row += weight * v_n for key n of the chunk.
template <class T>
void OddValues<T>::add_value(const BlockScores<T>& scores, Index n, const T* weight, T* row) const {
  const StoredRows value = call_.reads_values ? scores.reads().values(n) : values_.row(n);
  k_.stored_sum({weight, kScoreStride}, 1, value, 1, p_.E, {row, width_}, {});
}

// Over live keys only. Weights do not identify them (a live weight may be 0 by rounding or
// dropout), so the scores are recomputed.
template <class T>
void OddValues<T>::sum_with_care(BlockScores<T>& scores, SoftmaxState<T>& state, Index t) const {
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
    for (Index n = keys.begin; n < end && !call_.pairs; ++n) {
      if (live[n]) add_value(scores, n, s + n, row);
    }
    // The odd key of a pair first: core/bfloat16_pairs.h.
    for (Index n = keys.begin; n < end && call_.pairs; n += 2) {
      const Index key = scores.first_key() + n;
      if (n + 1 < end && live[n + 1]) add_rounded(key + 1, s[n + 1], row);
      if (live[n]) add_rounded(key, s[n], row);
    }
  }
}

// row += weight * the value of row `key` of the unit, alone in its pair.
template <class T>
void OddValues<T>::add_rounded(Index key, T weight, T* row) const {
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

#endif  // QKV_ATTENTION_FORWARD_ODD_VALUES_H_
