// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_SOFTMAX_STATE_H_
#define QKV_ATTENTION_FORWARD_SOFTMAX_STATE_H_

#include <algorithm>
#include <limits>

#include "attention/tiles/block_scores.h"

namespace qkv::attn {

// The softmax of a block's rows so far, and that of the current chunk for two tiles: maxima
// of the scores, sums of their exponentials, and values weighted by these. Chunks are merged as in
// Milakov and Gimelshein 2018.
template <class T>
class SoftmaxState {
 public:
  template <class AnyArena>
  SoftmaxState(const FusedCall<T>& call, AnyArena& arena) : call_(call), k_(call.kernels) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    width_ = call.padded_width();
    for (T** array : {&max, &sum}) *array = take(kBlockRows + kMostLanes);
    for (T** array : {&merged_.max, &merged_.sum, &factor_, &chunk_factor_}) {
      *array = take(pieces(kRowsAtOnce, kMostLanes) * kMostLanes);
    }
    acc = take(kBlockRows * width_);
    merged_.acc = take(kRowsAtOnce * width_);
    use_merged();
  }

  // Before any key, for rows 0 .. rows-1.
  void reset(Index rows) {
    use_merged();
    reset_softmax(rows);
    for (Index r = 0; r < rows; ++r) {
      call_.stop();
      std::fill_n(acc + r * width_, width_, T(0));
    }
  }
  // The same if one chunk has all live keys: its results are not merged but are the rows'.
  void reset_for_one_chunk(Index rows) {
    merges_ = false;
    reset_softmax(rows);
  }

  // Before the chunk's results for the tiles that begin with row `first`.
  void begin_tiles(Index first) {
    if (!merges_) chunk = {max + first, sum + first, acc + first * width_};
  }
  // Instead of these, if the tiles have no live key.
  void skip_tiles(Index rows) {
    if (!merges_) std::fill_n(chunk.acc, rows * width_, T(0));
  }
  // Merges the chunk's results of the tiles that begin with row `first`.
  void absorb(Index first, Index rows, bool with_values) {
    if (!merges_) return;
    // Whole registers: the rows behind the tiles' have the state of a chunk without live keys,
    // which changes nothing.
    for (Index r = rows; r % kMostLanes != 0; ++r) {
      chunk.max[r] = -std::numeric_limits<T>::infinity();
      chunk.sum[r] = T(0);
    }
    k_.merge(pieces(rows, kMostLanes) * kMostLanes, {max + first, sum + first},
             {chunk.max, chunk.sum}, factor_, chunk_factor_);
    if (!with_values) return;
    for (Index r = 0; r < rows; ++r) {
      k_.merge_row(acc + (first + r) * width_, factor_[r], chunk.acc + r * width_, chunk_factor_[r],
                   width_);
    }
  }
  // From here on absorb() merges.
  void use_merged() {
    merges_ = true;
    chunk = merged_;
  }
  // The chunk's state of tiles without live keys.
  void clear_chunk() {
    constexpr Index kRows = pieces(kRowsAtOnce, kMostLanes) * kMostLanes;
    std::fill(merged_.max, merged_.max + kRows, -std::numeric_limits<T>::infinity());
    std::fill(merged_.sum, merged_.sum + kRows, T(0));
  }

  // The scores of tile t become the exponentials of what they are below their row's maximum, after
  // options and masks, and dropped out; fills the chunk's maxima and sums.
  void weigh(BlockScores<T>& scores, Index t) {
    const QueryRows<T>& queries = scores.queries;
    const Index first = queries.tile_begin(t);
    const Index rows = queries.tile_end(t) - first;
    const Index place = first % kRowsAtOnce;
    if (scores.tile(t).live_panels == 0) {
      std::fill_n(chunk.max + place, rows, -std::numeric_limits<T>::infinity());
      std::fill_n(chunk.sum + place, rows, T(0));
      return;
    }
    for (Index r = first; call_.changes_scores && r < first + rows; ++r) {
      scores.soft_cap(r);
      scores.change(r);
    }
    const KeyRange x = scores.pad(t);
    k_.softmax({scores.row(first) + x.begin, kScoreStride}, rows, x.end - x.begin,
               core::kLeastExponent<T>, chunk.max + place, chunk.sum + place);
    for (Index r = first; call_.p.dropout != 0 && r < first + rows; ++r) drop(scores, r);
  }
  // The same for row r alone, whose options and masks have been applied.
  void weigh_row(BlockScores<T>& scores, Index r) {
    const KeyRange x = scores.piece(r);
    const Index place = r % kRowsAtOnce;
    k_.softmax({scores.row(r) + x.begin, kScoreStride}, 1, x.end - x.begin, core::kLeastExponent<T>,
               chunk.max + place, chunk.sum + place);
    drop(scores, r);
  }

  Index width() const { return width_; }

  T* max = nullptr;  // of each row so far
  T* sum = nullptr;
  T* acc = nullptr;  // [rows][width]
  struct Chunk {     // of each row of two tiles
    T* max = nullptr;
    T* sum = nullptr;
    T* acc = nullptr;  // [rows][width]
  } chunk;

 private:
  void reset_softmax(Index rows) {
    std::fill(max, max + rows + kMostLanes, -std::numeric_limits<T>::infinity());
    std::fill(sum, sum + rows + kMostLanes, T(0));
  }
  void drop(BlockScores<T>& scores, Index r) const {
    const QueryAt& at = scores.queries[r].at;
    const KeyRange x = scores.piece(r);
    k_.drop(scores.row(r) + x.begin, call_.p.dropout_mask.row(at.b, at.h, at.i),
            scores.first_key() + x.begin, x.end - x.begin);
  }

  const FusedCall<T>& call_;
  const kernels::DotKernels<T>& k_;
  Index width_ = 0;
  bool merges_ = true;  // chunks, else the only chunk's results are the rows'
  Chunk merged_;        // memory of a chunk that is merged
  T* factor_ = nullptr;
  T* chunk_factor_ = nullptr;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_SOFTMAX_STATE_H_
