// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_TASKS_H_
#define QKV_RUNTIME_TASKS_H_

#include <atomic>
#include <cstddef>
#include <string_view>

#include <qkv/context.h>
#include <qkv/view.h>

#include "core/arena.h"
#include "core/stop.h"

// Tasks and scratch memory: what the drivers of a call see of the runtime.
namespace qkv::runtime {

using core::Arena;

// One call's use of a context: takes it (throws Error naming `function` when the context is in
// use), reserves scratch, runs tasks, gives it back when it ends.
class Call {
 public:
  // Without scratch. `function` must outlive the call, as a literal does.
  Call(Context& context, std::string_view function);
  // With scratch, as reserve() gives.
  Call(Context& context, std::string_view function, std::size_t shared, std::size_t per_worker);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // `shared` bytes for all tasks together and `per_worker` bytes for each worker; shared() begins
  // anew. Throws std::bad_alloc.
  void reserve(std::size_t shared, std::size_t per_worker);

  // The memory that all tasks of this call see; lives until the call ends.
  Arena& shared() noexcept { return shared_; }

  // The most tasks that run at the same time.
  int concurrency() const noexcept;

  core::StopPoint stop_point() const noexcept;

  // Whether a task of the running for_each_task has thrown: tasks before this one may never end.
  bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

  // Runs f(task, arena) for task 0..tasks-1, each once. `arena` is the worker's own, empty at each
  // task. The stop flag is read before each task (set: no further task starts and Cancelled is
  // thrown); a long task reads it by stop_point(). The first exception of a task is thrown here
  // after all workers have returned; tasks not begun by then are left out. Tasks compute in the
  // floating-point environment (rounding, subnormals) of the thread that calls this. With one
  // worker or one task nothing is locked.
  template <class F>
  void for_each_task(Index tasks, const F& f) {
    run(
        tasks,
        [](const void* state, Index task, Arena& arena) {
          (*static_cast<const F*>(state))(task, arena);
        },
        &f);
  }

 private:
  using Task = void (*)(const void* state, Index task, Arena& arena);
  struct Run;

  void run(Index tasks, Task task, const void* state);
  void run_serially(Index tasks, Task task, const void* state) const;
  void run_on_workers(Index bodies, Index tasks, Task task, const void* state);
  detail::ContextState& state_;
  std::string_view function_;
  Arena shared_;
  std::atomic<bool> failed_{false};
};

// That of a function which has not taken the context yet.
core::StopPoint stop_point(Context& context, std::string_view function);

}  // namespace qkv::runtime

#endif  // QKV_RUNTIME_TASKS_H_
