// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_BACKWARD_GRADIENT_KEYS_H_
#define QKV_ATTENTION_BACKWARD_GRADIENT_KEYS_H_

#include <algorithm>

#include "attention/backward/gradient_call.h"
#include "attention/tiles/key_set.h"
#include "attention/tiles/pack.h"
#include "core/floats.h"
#include "core/integers.h"

namespace qkv::attn {

// The block of 128 keys of a task of step 2 (backward.h): keys and values as the products read them
// (panels [terms(score_width())][kPanel] and [terms(E)][kPanel], rows [keys][Dk] or words). A key
// is non-finite if its row of k, or of v if values are packed, has NaN or an infinity. If no query
// of the current block of queries attends to any non-finite key, such keys are left out, except for
// additive scores: their values count as zeros, and sums over keys skip them. Owned by
// GradientPairs.
template <class T>
class GradientKeys {
 public:
  template <class AnyArena>
  GradientKeys(const FusedGradientCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    key_panels_ = take(kGradientBlock * p_.Dk);
    value_panels_ = take(kGradientBlock * p_.E);
    if (copies_rows()) copies_ = take(kGradientBlock * p_.Dk);
    if (call.dot.in_words) words_ = take(kGradientBlock / 2 * p_.Dk);
  }

  // Moves to the block of keys that starts at key block * kGradientBlock of a unit.
  void start(const KeyUnit& unit, Index block);

  const KeyUnit& unit() const { return unit_; }
  Index block() const { return block_; }
  // The block's first key, counted in its sequence, and the row of k and v that holds it.
  Index first() const { return first_; }
  Index row() const { return unit_.s.k0 + first_; }
  Index count() const { return count_; }
  Index panels() const { return core::divide_up(count_, kPanel); }

  // Panel n of keys, which scores read, and of values, which dw reads: kPanel rows, transposed.
  const T* key_panel(Index n) const {
    return key_panels_ + n * kPanel * call_.terms(call_.dot.score_width());
  }
  const T* value_panel(Index n) const { return value_panels_ + n * kPanel * call_.terms(p_.E); }
  // Rows of keys for sums over keys. With BF16 products, a row holds the words of two keys.
  const RowsOf<const T>& rows() const { return rows_; }

  // Whether all packed keys and values are finite.
  bool are_finite() const { return finite_; }
  // Whether there are non-finite keys that may be left out.
  bool have_non_finite() const { return !finite_ && leaves_out_non_finite(); }
  // The first non-finite key in begin .. end-1, else `end`. Requires have_non_finite().
  Index next_non_finite(Index begin, Index end) const { return non_finite_.next(begin, end); }
  // Prepares value panels and words for a block of queries. If `keep` (a query attends to a
  // non-finite key), they hold the rows of non-finite keys; if not, zeros in their place. Requires
  // have_non_finite().
  void keep_non_finite(bool keep);

 private:
  bool copies_rows() const {
    return !call_.dot.in_words && (p_.k.dtype != dtype_of<T> || p_.k.col_stride != 1);
  }
  bool leaves_out_non_finite() const { return call_.dot.additive == nullptr; }
  void pack(const Operand& x, Index offset, Index width, T* panels);
  void pack_values();
  void join_rows(Index offset);
  void find_non_finite();
  void find_non_finite(const T* panels, Index terms);
  Index key_offset() const {
    return core::offset_of(p_.k, core::batch_offset(p_.k, p_.batch, unit_.b), unit_.g, row(), 0);
  }

  const FusedGradientCall<T>& call_;
  const Problem& p_;
  KeyUnit unit_;
  Index block_ = 0;
  Index first_ = 0;
  Index count_ = 0;
  bool finite_ = true;
  // Whether value_panels_ and words_ hold the rows of non-finite keys; if not, zeros in their
  // place.
  bool keeps_non_finite_ = true;
  KeySet non_finite_;
  RowsOf<const T> rows_;
  T* key_panels_ = nullptr;
  T* value_panels_ = nullptr;
  T* copies_ = nullptr;  // [keys][Dk]
  T* words_ = nullptr;   // [pairs of keys][Dk]
};

template <class T>
void GradientKeys<T>::start(const KeyUnit& unit, Index block) {
  unit_ = unit;
  block_ = block;
  first_ = block * kGradientBlock;
  count_ = std::min(kGradientBlock, unit.s.Tk - first_);
  finite_ = true;
  keeps_non_finite_ = true;
  const Index offset = key_offset();
  pack(p_.k, offset, call_.dot.score_width(), key_panels_);
  pack_values();
  if (have_non_finite()) find_non_finite();
  if (call_.dot.in_words) {
    join_rows(offset);
    rows_ = {words_, p_.Dk};
  } else if (copies_rows()) {
    for (Index n = 0; n < count_; ++n) {
      call_.dot.stop();
      load_values(p_.k, offset + n * p_.k.row_stride, p_.k.col_stride, p_.Dk, copies_ + n * p_.Dk);
    }
    rows_ = {copies_, p_.Dk};
  } else {
    rows_ = {static_cast<const T*>(p_.k.data) + offset, p_.k.row_stride};
  }
}

template <class T>
void GradientKeys<T>::pack(const Operand& x, Index offset, Index width, T* panels) {
  for (Index n = 0; n < this->panels(); ++n) {
    call_.dot.stop();
    pack_panel(call_.dot, x, offset + n * kPanel * x.row_stride,
               std::min(kPanel, count_ - n * kPanel), width,
               panels + n * kPanel * call_.terms(width));
  }
  finite_ =
      finite_ && call_.kernels.all_finite(panels, this->panels() * kPanel * call_.terms(width));
}

template <class T>
void GradientKeys<T>::pack_values() {
  if (!call_.multiplies_values()) return;
  const Operand& v = p_.v;
  const Index first = core::offset_of(v, core::batch_offset(v, p_.batch, unit_.b),
                                      p_.value_head(unit_.g), row(), 0);
  pack(v, first, p_.E, value_panels_);
}

template <class T>
void GradientKeys<T>::join_rows(Index offset) {
  if (!call_.multiplies_queries()) return;
  for (Index n = 0; n < count_; n += 2) {
    call_.dot.stop();
    const Index row = offset + n * p_.k.row_stride;
    const Index count = std::min<Index>(2, count_ - n);
    T* to = words_ + n / 2 * p_.Dk;
    if (is_readable<T>(p_.k)) {
      call_.dot.kernels.join_values(stored_rows(p_.k, row), count, p_.Dk, {to, p_.Dk});
    } else {
      join_strided_values(p_.k, row, count, p_.Dk, to);
    }
  }
}

// ---- non-finite keys -----------------------------------------------------------------------

template <class T>
void GradientKeys<T>::find_non_finite() {
  non_finite_ = {};
  find_non_finite(key_panels_, call_.terms(p_.Dk));
  if (call_.multiplies_values()) find_non_finite(value_panels_, call_.terms(p_.E));
}

template <class T>
void GradientKeys<T>::find_non_finite(const T* panels, Index terms) {
  for (Index n = 0; n < this->panels(); ++n) {
    call_.dot.stop();
    core::NonFiniteColumns<T, kPanel> columns;
    for (Index c = 0; c < terms; ++c) {
      const T* row = panels + (n * terms + c) * kPanel;
      if (!call_.dot.in_words) {
        columns.add(row);
        continue;
      }
      for (const Index half : {0, 1}) {
        T values[kPanel];
        std::transform(row, row + kPanel, values, [&](T x) { return half_of_word(x, half); });
        columns.add(values);
      }
    }
    for (Index x = 0; x < kPanel; ++x) {
      if (columns.is_non_finite(x)) non_finite_.insert(n * kPanel + x);
    }
  }
}

template <class T>
void GradientKeys<T>::keep_non_finite(bool keep) {
  if (keep == keeps_non_finite_) return;
  keeps_non_finite_ = keep;
  if (keep) {
    pack_values();
    if (call_.dot.in_words) join_rows(key_offset());
    return;
  }
  for (Index n = next_non_finite(0, count_); n < count_; n = next_non_finite(n + 1, count_)) {
    if (call_.multiplies_values()) {
      const Index terms = call_.terms(p_.E);
      T* const column = value_panels_ + n / kPanel * kPanel * terms + n % kPanel;
      for (Index c = 0; c < terms; ++c) column[c * kPanel] = T(0);
    }
    if (call_.dot.in_words && call_.multiplies_queries()) {
      T* const row = words_ + n / 2 * p_.Dk;
      for (Index c = 0; c < p_.Dk; ++c) row[c] = word_without(row[c], n % 2);
    }
  }
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_BACKWARD_GRADIENT_KEYS_H_
