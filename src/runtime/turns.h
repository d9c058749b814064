// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_TURNS_H_
#define QKV_RUNTIME_TURNS_H_

#include <atomic>
#include <thread>

#include "runtime/tasks.h"

namespace qkv::runtime {

// Ordered accumulation: several tasks write to one thing in the order of the tasks' numbers. Task n
// waits for its turn, writes, and passes the turn to n + 1. Tasks start in ascending order, so a
// task waits only for tasks that have started.
class Turns {
 public:
  Turns() = default;
  template <class AnyArena>
  static Turns take(AnyArena& arena, Index things) {
    Turns turns;
    turns.next_ = arena.template take<Index>(things).data();
    return turns;
  }
  // Sets which task is the first to write to `thing`. It is called before the first task runs.
  void begin(Index thing, Index turn) const { next_[thing] = turn; }

  // Waits for the turn. Returns false if the task before will not come, because a task has thrown.
  // Throws Cancelled if the call is stopped.
  bool wait(const Call& call, Index thing, Index turn) const {
    const std::atomic_ref<Index> next(next_[thing]);
    const core::StopPoint stop = call.stop_point();
    for (int tries = 0; next.load(std::memory_order_acquire) != turn; ++tries) {
      if (call.failed()) return false;
      stop();
      if (tries >= kTriesBetweenYields) std::this_thread::yield();
    }
    return true;
  }
  void pass_on(Index thing, Index turn) const {
    std::atomic_ref<Index>(next_[thing]).store(turn + 1, std::memory_order_release);
  }

 private:
  static constexpr int kTriesBetweenYields = 64;
  Index* next_ = nullptr;
};

}  // namespace qkv::runtime

#endif  // QKV_RUNTIME_TURNS_H_
