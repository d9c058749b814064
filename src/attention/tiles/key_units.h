// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_TILES_KEY_UNITS_H_
#define QKV_ATTENTION_TILES_KEY_UNITS_H_

#include <algorithm>

#include "core/arena.h"
#include "core/problem.h"
#include "runtime/tasks.h"

// How the work of a call is divided: by key heads, and within each into tasks chosen by the pass.
namespace qkv::attn {

using core::Problem;
using core::Sequence;

// One key head of one batch entry or sequence, and the query heads that read it.
struct KeyUnit {
  Index b = 0;
  Index g = 0;
  Sequence s;
  Index first_head = 0;
  Index heads = 0;
  Index rows() const noexcept { return heads * s.Tq; }  // (h, i) in row-major order
};

inline Index unit_count(const Problem& p) noexcept { return p.B * p.G; }

inline KeyUnit key_unit(const Problem& p, Index unit) noexcept {
  const Index b = unit / p.G;
  const Index g = unit % p.G;
  const Index heads = p.H / p.G;
  return {b, g, p.sequence(b), g * heads, heads};
}

constexpr Index pieces(Index n, Index length) noexcept { return (n + length - 1) / length; }

// Consecutive units that are processed together.
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

  // Units from `begin` on and before `end`, with at most `budget` pieces in all, but at least one
  // unit; `size` gives the pieces of a unit. Returns false if no unit is left.
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
  // Pieces before the n-th unit of the block.
  Index offset(Index n) const noexcept { return offsets_[n]; }

  // Calls f(unit, n, task, arena) for each of the tasks(unit) tasks of each unit, the n-th of the
  // block.
  template <class Tasks, class F>
  void for_each_task(const Problem& p, runtime::Call& call, const Tasks& tasks, const F& f) const {
    call.stop_point()();  // there may be many blocks without tasks
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
  Index* starts_ = nullptr;   // first task of each unit
  Index* offsets_ = nullptr;  // first piece of each unit
};

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_TILES_KEY_UNITS_H_
