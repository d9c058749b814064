// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_CHUNK_KEYS_H_
#define QKV_ATTENTION_TILES_CHUNK_KEYS_H_

#include <algorithm>

#include "attention/tiles/chunk_reads.h"
#include "attention/tiles/pack.h"
#include "core/head_rows.h"

namespace qkv::attn {

// The keys of the current chunk as the scores of a block read them: panels that the pass packed for
// all blocks, panels [Dk][kPanel] that the block packs when they are first needed, or rows as they
// are stored. ChunkKeys also has the addresses of values that are read as they are stored. Owned by
// BlockScores.
template <class T>
class ChunkKeys {
 public:
  template <class AnyArena>
  ChunkKeys(const FusedCall<T>& call, AnyArena& arena) : call_(call), p_(call.p) {
    if (!call.reads_keys) panels_ = arena.template take<T>(p_.key_chunk * p_.Dk).data();
  }

  // Starts with the keys of a unit. `packed`: the unit's panels, or null if they are packed when
  // needed.
  void start(const KeyUnit& unit, const T* packed) {
    end_ = reads_end_ = unit.s.Tk;
    packed_ = packed;
    rows_ = {p_, p_.k, unit.b, unit.g, unit.s.k0};
  }
  // Promises that this block reads no key from `end` on: such keys are not prefetched.
  void read_until(Index end) { reads_end_ = end; }
  // Goes to the chunk that begins with key `first`. `live`: the keys of the unit that interval
  // masks allow at least one row; with `all`, scores of the other keys are computed too. `values`:
  // the rows of the unit's values, or null if the chunk's values are not read.
  void go_to(Index first, const KeyRange& live, bool all, const core::HeadRows* values) {
    first_ = first;
    count_ = std::min(p_.key_chunk, end_ - first);
    packed_here_ = 0;
    if (!call_.reads_keys && !call_.reads_values) return;
    reads_ = ChunkReads(call_.key_block());
    if (call_.reads_keys) reads_.set_keys(p_.k, rows_, first, p_.Dk);
    if (call_.reads_values && values != nullptr) reads_.set_values(p_.v, *values, first, p_.E);
    stored_ = {0, count_};
    if (!all) {
      const Index block = call_.key_block();
      stored_ = {std::max(live.begin - first, Index{0}) / block * block,
                 std::min(live.end - first, count_)};
    }
    reads_.expect(stored_.begin, stored_.end, std::min(live.end, reads_end_) - first);
  }

  Index first() const { return first_; }
  Index count() const { return count_; }
  // Whether scores read keys as they are stored, not panels.
  bool are_stored() const { return call_.reads_keys && packed_ == nullptr; }
  // Panel n of the chunk, packed now if it is not yet.
  const T* panel(Index n) {
    const Index j = first_ + n * kPanel;
    if (packed_ != nullptr) return packed_ + j * p_.Dk;
    T* const own = panels_ + n * kPanel * p_.Dk;
    if ((packed_here_ >> n & 1U) == 0) {
      pack_rows(call_, p_.k, rows_, j, std::min(kPanel, end_ - j), call_.score_width(), own);
      packed_here_ |= 1U << n;
    }
    return own;
  }
  // If keys or values are read as they are stored: the keys of the chunk that are read, and where
  // their rows are.
  const KeyRange& stored() const { return stored_; }
  const ChunkReads& reads() const { return reads_; }

 private:
  const FusedCall<T>& call_;
  const Problem& p_;
  Index end_ = 0;  // number of keys of the unit
  core::HeadRows rows_;
  const T* packed_ = nullptr;
  Index first_ = 0;
  Index count_ = 0;
  ChunkReads reads_;
  KeyRange stored_;
  Index reads_end_ = 0;       // the key after the last one that this block reads
  T* panels_ = nullptr;       // [panels][Dk][kPanel]: panels that this block packs
  unsigned packed_here_ = 0;  // bit n: panel n is packed
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_CHUNK_KEYS_H_
