// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_ODD_VALUES_H_
#define QKV_ATTENTION_FUSED_ODD_VALUES_H_

#include "attention/fused/block.h"
#include "core/finite.h"

// The work of a FusedBlock on a chunk where a key's value is odd: NaN or infinite in some channel.
// It is multiplied by the weights of the rows that see the key, and no others.
namespace qkv::attn {

// Looks at the values of the keys that some row may see, once per chunk.
template <class T>
void FusedBlock<T>::find_odd_values(const StoredRows& v) {
  if (knows_odd_) return;
  knows_odd_ = true;
  KeyRange keys{std::max(live_.begin - j0_, Index{0}) / kPanel * kPanel,
                std::min(keys_, pieces(live_.end - j0_, kPanel) * kPanel)};
  if (call_.reads_values) keys = stored_;
  for (Index n = keys.begin; n < keys.end; ++n) {
    if (n % kPanel == 0) call_.stop();
    if (is_odd_value(n, v)) odd_.insert(n);
  }
}

template <class T>
bool FusedBlock<T>::is_odd_value(Index n, const StoredRows& v) const {
  if (call_.pairs) {
    const Index offset = v_rows_.offset(j0_ + n);
    bool odd = false;
    for (Index c = 0; c < p_.E; ++c) {
      odd |=
          (bfloat16_at(p_.v, offset, c).bits & core::kInfinityBFloat16) == core::kInfinityBFloat16;
    }
    return odd;
  }
  const StoredRows row = call_.reads_values ? reads_.values(n) : v.row(n);
  if (row.dtype == dtype_of<T>) return !core::are_finite(static_cast<const T*>(row.data), p_.E);
  k_.widen(row, 1, p_.E, {odd_row_, width_});
  return !core::are_finite<T>(odd_row_, p_.E);
}

// Whether masks let row r see key n of the chunk.
template <class T>
bool FusedBlock<T>::may_see(Index r, Index n) const {
  const KeyRange& live = rows_[r].live;
  if (j0_ + n < live.begin || j0_ + n >= live.end) return false;
  return !tiles_[r / kTileRows].partial || allowed(r)[n] != 0;
}

// Adds keys begin .. end-1, one or a pair with an odd value, row by row. The odd key of a pair
// first: core/bfloat16_pairs.h. Where masks let a row see an odd value and the weight is 0, by
// rounding, dropout or a score of -inf, only the scores tell: the tile is ambiguous.
template <class T>
void FusedBlock<T>::sum_one_by_one(Index t, Index begin, Index end, const StoredRows& v) {
  for (Index n = end - 1; n >= begin; --n) {
    for (Index r = tile_begin(t); r < tile_end(t); ++r) {
      if (odd_.contains(n) && !may_see(r, n)) continue;
      T* const row = chunk_acc + r % kGroupRows * width_;
      const T weight = call_.pairs ? half_of_word(scores(r)[n / 2], n % 2) : scores(r)[n];
      if (weight == 0) {
        if (odd_.contains(n)) ambiguous_ |= 1U << t % kGroupTiles;
      } else if (call_.pairs) {
        add_rounded(n, weight, row);
      } else {
        add_value(n, &weight, v, row);
      }
    }
  }
}

// row += weight * v_n for key n of the chunk.
template <class T>
void FusedBlock<T>::add_value(Index n, const T* weight, const StoredRows& v, T* row) const {
  const StoredRows value = call_.reads_values ? reads_.values(n) : v.row(n);
  k_.stored_sum({weight, kScoreStride}, 1, value, 1, p_.E, {row, width_}, {});
}

// The sums of a tile, key by key, over live keys only. Weights do not identify them (a live weight
// may be 0 by rounding or dropout), so the scores are recomputed.
template <class T>
void FusedBlock<T>::sum_with_care(Index t, const StoredRows& v) {
  const Index first = tile_begin(t);
  const Tile tile = tiles_[t];
  for (Index n = 0; n < kPanelsPerChunk; ++n) {
    if ((tile.live_panels >> n & 1U) != 0) score_panel(t, t + 1, n);
  }
  for (Index r = first; r < tile_end(t); ++r) {
    T* s = scores(r);
    soft_cap(r);
    change(r);
    bool live[kKeyChunk];
    for (Index n = tile.keys.begin; n < tile.keys.end; ++n) {
      live[n] = s[n] != -std::numeric_limits<T>::infinity();
    }
    const Index in_group = r % kGroupRows;
    k_.softmax({s + tile.keys.begin, kScoreStride}, 1, tile.keys.end - tile.keys.begin,
               chunk_max + in_group, chunk_sum + in_group);
    drop(r);
    T* row = chunk_acc + in_group * width_;
    std::fill(row, row + width_, T(0));
    const Index end = std::min(keys_, tile.keys.end);
    for (Index n = tile.keys.begin; n < end && !call_.pairs; ++n) {
      if (live[n]) add_value(n, s + n, v, row);
    }
    // The odd key of a pair first: core/bfloat16_pairs.h.
    for (Index n = tile.keys.begin; n < end && call_.pairs; n += 2) {
      if (n + 1 < end && live[n + 1]) add_rounded(n + 1, s[n + 1], row);
      if (live[n]) add_rounded(n, s[n], row);
    }
  }
}

// row += weight * v_n for key n of the chunk, alone in its pair.
template <class T>
void FusedBlock<T>::add_rounded(Index n, T weight, T* row) {
  T words[kPanel] = {weight};
  k_.round_weights(words, kPanel, words);
  const Index offset = v_rows_.offset(j0_ + n);
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

#endif  // QKV_ATTENTION_FUSED_ODD_VALUES_H_
