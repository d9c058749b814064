// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_KEY_UNITS_H_
#define QKV_ATTENTION_TILES_KEY_UNITS_H_

#include <algorithm>

#include "core/arena.h"
#include "core/problem.h"
#include "runtime/tasks.h"

// Division of a call's work: first by key heads (units), then within each into the tasks of a step
// of the pass.
namespace qkv::attn {

using core::Problem;
using core::Sequence;

// A unit of work: one key head of one batch entry or packed sequence, with the query heads that
// read it.
struct KeyUnit {
  Index b = 0;
  Index g = 0;
  Sequence s;
  Index first_head = 0;
  Index heads = 0;
  Index rows() const noexcept { return heads * s.Tq; }  // query rows (h, i), in row-major order
};

inline Index unit_count(const Problem& p) noexcept { return p.B * p.G; }

inline KeyUnit key_unit(const Problem& p, Index unit) noexcept {
  const Index b = unit / p.G;
  const Index g = unit % p.G;
  const Index heads = p.H / p.G;
  return {b, g, p.sequence(b), g * heads, heads};
}

// Consecutive units (a block of heads) that are processed together, so that what is packed for them
// stays in the caches. A unit takes pieces of the shared memory, each for a packed panel of keys,
// or for the partial results of one chunk.
class UnitBlock {
 public:
  static constexpr Index kMostUnits = 1024;

  UnitBlock() = default;
  template <class AnyArena>
  static UnitBlock take(AnyArena& arena) {
    UnitBlock block;
    block.starts_ = arena.template take<Index>(kMostUnits + 1).data();
    block.offsets_ = arena.template take<Index>(kMostUnits + 1).data();
    return block;
  }

  // Takes units from `begin` on, before `end`: at least one, and others as long as the block has at
  // most kMostUnits units and `budget` pieces. size(unit) returns the number of pieces of a unit.
  // Returns false if no unit is left.
  template <class Size>
  bool next(const Problem& p, Index begin, Index end, Index budget, const Size& size) {
    begin_ = begin;
    count_ = 0;
    offsets_[0] = 0;
    while (begin + count_ < end && count_ < kMostUnits) {
      const Index more = offsets_[count_] + size(key_unit(p, begin + count_));
      if (count_ > 0 && more > budget) break;
      offsets_[++count_] = more;
    }
    return count_ > 0;
  }
  Index end() const noexcept { return begin_ + count_; }
  Index pieces() const noexcept { return offsets_[count_]; }
  // Number of pieces before those of the n-th unit of the block.
  Index offset(Index n) const noexcept { return offsets_[n]; }

  // Calls f(unit, n, task, arena) in parallel for each of the tasks(unit) tasks of each unit, which
  // is the n-th of the block.
  template <class Tasks, class F>
  void for_each_task(const Problem& p, runtime::Call& call, const Tasks& tasks, const F& f) const {
    call.stop_point()();  // polls, since there may be many blocks without tasks
    starts_[0] = 0;
    for (Index n = 0; n < count_; ++n) {
      starts_[n + 1] = starts_[n] + tasks(key_unit(p, begin_ + n));
    }
    call.for_each_task(starts_[count_], [&](Index task, core::Arena& arena) {
      const Index n = std::upper_bound(starts_, starts_ + count_, task) - starts_ - 1;
      f(key_unit(p, begin_ + n), n, task - starts_[n], arena);
    });
  }

 private:
  Index begin_ = 0;
  Index count_ = 0;
  Index* starts_ = nullptr;   // [kMostUnits + 1]: index of each unit's first task
  Index* offsets_ = nullptr;  // [kMostUnits + 1]: index of each unit's first piece
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_KEY_UNITS_H_
