// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FORWARD_SOFTMAX_STATE_H_
#define QKV_ATTENTION_FORWARD_SOFTMAX_STATE_H_

#include <algorithm>
#include <limits>

#include "attention/tiles/block_scores.h"
#include "core/integers.h"

namespace qkv::attn {

// The softmax state of a block's rows: running maximum and sum [rows] and weighted sum of values
// [rows][padded E], over the chunks so far and, for two tiles, of the current chunk. This is the
// softmax step of the forward pass; chunks are merged as in Milakov and Gimelshein 2018. A live
// key, panel or tile has an unmasked query-key pair.
template <class T>
class SoftmaxState {
 public:
  template <class AnyArena>
  SoftmaxState(const FusedCall<T>& call, AnyArena& arena) : call_(call), k_(call.kernels) {
    const auto take = [&](Index n) { return arena.template take<T>(n).data(); };
    width_ = call.padded_width();
    for (T** array : {&max, &sum}) *array = take(kBlockRows + kMostLanes);
    for (T** array : {&merged_.max, &merged_.sum, &factor_, &chunk_factor_}) {
      *array = take(core::divide_up(kRowsAtOnce, kMostLanes) * kMostLanes);
    }
    acc = take(kBlockRows * width_);
    merged_.acc = take(kRowsAtOnce * width_);
    use_merged();
  }

  // Resets rows 0 .. rows-1 to the state before any key.
  void reset(Index rows) {
    use_merged();
    reset_softmax(rows);
    for (Index r = 0; r < rows; ++r) {
      call_.stop();
      std::fill_n(acc + r * width_, width_, T(0));
    }
  }
  // Resets rows whose live keys are all in one chunk. The chunk's results are then written directly
  // to max, sum and acc, so that nothing is merged.
  void reset_for_one_chunk(Index rows) {
    merges_ = false;
    reset_softmax(rows);
  }

  // Called before the results of the tiles that begin with row `first` are written to `chunk`.
  void begin_tiles(Index first) {
    if (!merges_) chunk = {max + first, sum + first, acc + first * width_};
  }
  // Called instead of absorb() if the tiles have no live key: sets unmerged weighted sums to 0.
  void skip_tiles(Index rows) {
    if (!merges_) std::fill_n(chunk.acc, rows * width_, T(0));
  }
  // Merges the chunk's results of the tiles that begin with row `first` into the rows' state.
  void absorb(Index first, Index rows, bool with_values) {
    if (!merges_) return;
    // merge() takes whole registers: the rows behind the last one get the state of a chunk without
    // live keys, which changes nothing.
    for (Index r = rows; r % kMostLanes != 0; ++r) {
      chunk.max[r] = -std::numeric_limits<T>::infinity();
      chunk.sum[r] = T(0);
    }
    k_.merge(core::divide_up(rows, kMostLanes) * kMostLanes, {max + first, sum + first},
             {chunk.max, chunk.sum}, factor_, chunk_factor_);
    if (!with_values) return;
    for (Index r = 0; r < rows; ++r) {
      k_.merge_row(acc + (first + r) * width_, factor_[r], chunk.acc + r * width_, chunk_factor_[r],
                   width_);
    }
  }
  // Makes absorb() merge from here on.
  void use_merged() {
    merges_ = true;
    chunk = merged_;
  }
  // Sets the chunk's state to that of tiles without live keys.
  void clear_chunk() {
    constexpr Index kRows = core::divide_up(kRowsAtOnce, kMostLanes) * kMostLanes;
    std::fill(merged_.max, merged_.max + kRows, -std::numeric_limits<T>::infinity());
    std::fill(merged_.sum, merged_.sum + kRows, T(0));
  }

  // Applies options and masks to the scores of tile t and replaces them by their weights exp(s -
  // row maximum of the chunk), with dropout; fills the chunk's maxima and sums.
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
  // Replaces the scores of row r alone by their weights. Its options and masks have been applied.
  void weigh_row(BlockScores<T>& scores, Index r) {
    const KeyRange x = scores.piece(r);
    const Index place = r % kRowsAtOnce;
    k_.softmax({scores.row(r) + x.begin, kScoreStride}, 1, x.end - x.begin, core::kLeastExponent<T>,
               chunk.max + place, chunk.sum + place);
    drop(scores, r);
  }

  Index width() const { return width_; }

  T* max = nullptr;  // [rows]: maximum and sum of each row so far
  T* sum = nullptr;
  T* acc = nullptr;  // [rows][width]
  struct Chunk {     // state of the current chunk, for the rows of two tiles
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
    k_.drop(scores.row(r) + x.begin, call_.p.dropout_row(at.b, at.h, at.i),
            scores.first_key() + x.begin + call_.p.first_key(), x.end - x.begin);
  }

  const FusedCall<T>& call_;
  const kernels::DotKernels<T>& k_;
  Index width_ = 0;
  bool merges_ = true;  // whether chunks are merged; else the only chunk's results are the rows'
  Chunk merged_;        // arrays of a chunk that is merged
  T* factor_ = nullptr;
  T* chunk_factor_ = nullptr;
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FORWARD_SOFTMAX_STATE_H_
