// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_ROWMAPS_ROW_ANGLES_H_
#define QKV_ATTENTION_ROWMAPS_ROW_ANGLES_H_

#include "attention/tiles/call.h"
#include "attention/tiles/row_places.h"
#include "core/integers.h"
#include "reference/row_maps.h"

// cos and sin of the angles by which RoPE rotates the rows of q or of k. They are computed once for
// all heads, and once for all batch entries if these have equal positions.
namespace qkv::attn {

// The rows of one batch entry or packed sequence: first .. first + count - 1 of the array.
struct SequenceRows {
  Index first = 0;
  Index count = 0;
};
inline SequenceRows rows_of_sequence(const Problem& p, bool are_keys, Index b) {
  const core::Sequence s = p.sequence(b);
  return are_keys ? SequenceRows{s.k0, s.Tk} : SequenceRows{s.q0, s.Tq};
}

template <class T>
class RowAngles {
 public:
  RowAngles() = default;
  RowAngles(const Problem& p, const core::RowMaps& maps, const RowPlaces& places, bool are_keys)
      : rows_(places.rows), are_keys_(are_keys) {
    for (const core::RowMap& map : maps.maps()) {
      if (const auto* rotated = std::get_if<core::RotatedRows>(&map)) map_ = rotated;
    }
    if (map_ == nullptr || places.packed) return;
    const bool by_entry =
        map_->positions.given()
            ? map_->positions.entry_stride != 0
            : !are_keys && (std::holds_alternative<Offsets>(p.diagonal) || p.paged());
    if (by_entry) entries_ = p.B;
  }

  template <class AnyArena>
  void take(AnyArena& arena) {
    if (map_ == nullptr) return;
    frequencies_ = arena.template take<double>(map_->width / 2).data();
    angles_ = arena.template take<T>(entries_ * rows_ * map_->width).data();
  }
  // Computes the angles. `tools` must be those of the problem given to the constructor.
  template <class Tools>
  void prepare(const Tools& tools, runtime::Call& call) const;
  // [width]: cos and sin of the angles of a row, alternating; null if rows are not rotated.
  const T* of(Index b, Index row) const {
    if (map_ == nullptr) return nullptr;
    return angles_ + ((entries_ == 1 ? 0 : b * rows_) + row) * map_->width;
  }

 private:
  const core::RotatedRows* map_ = nullptr;
  Index entries_ = 1;
  Index rows_ = 0;
  bool are_keys_ = false;
  double* frequencies_ = nullptr;
  T* angles_ = nullptr;
};

template <class T>
template <class Tools>
void RowAngles<T>::prepare(const Tools& tools, runtime::Call& call) const {
  if (map_ == nullptr) return;
  const Problem& p = tools.p;
  const Index pairs = map_->width / 2;
  const core::Powers base = reference::powers_of_base(*map_);
  for (Index m = 0; m < pairs; ++m) frequencies_[m] = reference::frequency(*map_, base, m);
  constexpr Index kRows = 64;
  const Index sequences = p.packed() ? p.B : entries_;
  const Index blocks = core::divide_up(p.packed() ? (are_keys_ ? p.Tk : p.Tq) : rows_, kRows);
  call.for_each_task(sequences * blocks, [&](Index task, core::Arena&) {
    const Index b = task / blocks;
    const Index n0 = task % blocks * kRows;
    // Keys in pages share the angles of the longest entry.
    const SequenceRows all =
        are_keys_ && p.paged() ? SequenceRows{0, rows_} : rows_of_sequence(p, are_keys_, b);
    const Index offset = p.first_key() + (are_keys_ ? 0 : p.diagonal_offset(b, p.sequence(b)));
    for (Index n = n0; n < std::min(all.count, n0 + kRows); ++n) {
      tools.stop();
      const Index row = all.first + n;
      const Index position = reference::position(*map_, b, row, n + offset);
      T* to = angles_ + ((entries_ == 1 ? 0 : b * rows_) + row) * map_->width;
      for (Index m = 0; m < pairs; ++m) {
        const auto angle = reference::cos_sin_of<T>(static_cast<double>(position), frequencies_[m]);
        to[2 * m] = angle.cos;
        to[2 * m + 1] = angle.sin;
      }
    }
  });
}

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_ROWMAPS_ROW_ANGLES_H_
