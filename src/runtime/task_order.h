// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_TASK_ORDER_H_
#define QKV_RUNTIME_TASK_ORDER_H_

#include <atomic>
#include <thread>

#include "runtime/tasks.h"

namespace qkv::runtime {

// Ordered accumulation: several tasks write to one thing, such as a sum, in the order of their
// numbers. Task n waits until it is next, writes, and makes task n + 1 the next. Tasks start in
// ascending order, so a task waits only for tasks that have started.
class TaskOrder {
 public:
  TaskOrder() = default;
  template <class AnyArena>
  static TaskOrder take(AnyArena& arena, Index things) {
    TaskOrder order;
    order.next_ = arena.template take<Index>(things).data();
    return order;
  }
  // Sets the number of the first task to write to `thing`; to be called before any task waits.
  void begin(Index thing, Index number) const { next_[thing] = number; }

  // Waits until task `number` is the next to write to `thing`. Returns false if that may never
  // happen, because call.failed(). Throws Cancelled if the call is stopped.
  bool wait(const Call& call, Index thing, Index number) const {
    const std::atomic_ref<Index> next(next_[thing]);
    const core::StopPoint stop = call.stop_point();
    int tries = 0;
    while (next.load(std::memory_order_acquire) != number) {
      if (call.failed()) return false;
      stop();
      if (tries < kTriesBeforeYielding) {
        ++tries;
      } else {
        std::this_thread::yield();
      }
    }
    return true;
  }
  // Makes task number + 1 the next to write to `thing`; to be called once by each task that has
  // written. The last task may omit the call.
  void pass_on(Index thing, Index number) const {
    std::atomic_ref<Index>(next_[thing]).store(number + 1, std::memory_order_release);
  }

 private:
  static constexpr int kTriesBeforeYielding = 64;
  Index* next_ = nullptr;
};

}  // namespace qkv::runtime

#endif  // QKV_RUNTIME_TASK_ORDER_H_
