// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_TASKS_H_
#define QKV_RUNTIME_TASKS_H_

#include <atomic>
#include <cstddef>
#include <string_view>

#include <qkv/context.h>
#include <qkv/export.h>
#include <qkv/view.h>

#include "core/arena.h"
#include "core/stop.h"
#include "runtime/block.h"

// The tasks and the scratch memory of a call: the interface of the runtime to the code that carries
// out a call.
namespace qkv::runtime {

using core::Arena;

// One call's use of a context. It acquires the context (throws Error naming `function` if the
// context is in use), reserves scratch memory, runs tasks, and releases the context at the end.
class QKV_API Call {
 public:
  // Acquires the context without scratch memory. `function` must outlive the call, as a literal
  // does.
  Call(Context& context, std::string_view function);
  // Acquires the context and calls reserve().
  Call(Context& context, std::string_view function, std::size_t shared, std::size_t per_worker);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Reserves `shared` bytes for all tasks together and `per_worker` bytes for each worker, and
  // resets shared(). Throws std::bad_alloc.
  void reserve(std::size_t shared, std::size_t per_worker);

  // The memory that all tasks of this call share, until the next reserve() or the call's end.
  Arena& shared() noexcept { return shared_; }

  // The maximum number of concurrent tasks.
  int concurrency() const noexcept;

  core::StopPoint stop_point() const noexcept;

  // True if a task of the current for_each_task has thrown, or the stop flag has ended the loop. A
  // task must then not wait for other tasks, which may never run.
  bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

  // Runs f(task, arena) once for each task 0..tasks-1. `arena` is the worker's own and is empty at
  // the start of each task. The stop flag is read before each task (if it is set, no further task
  // starts and Cancelled is thrown); a long task polls it by stop_point(). The first exception of a
  // task is rethrown here after all workers have returned; tasks not started when it was thrown are
  // skipped. Tasks compute in the floating-point environment (rounding, subnormals) of the calling
  // thread. With one worker or one task, all tasks run on the calling thread, without locks.
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
  void run_on_workers(Index workers, Index tasks, Task task, const void* state);
  detail::ContextState& state_;
  std::string_view function_;
  Arena shared_;
  std::atomic<bool> failed_{false};
};

// Memory borrowed from a context, for results of one call that later calls read. The destructor
// returns it for the next BorrowedMemory, unless a call is using the context at that time. If the
// context is in use or its memory is already borrowed, the constructor allocates other memory.
// Throws std::bad_alloc.
class QKV_API BorrowedMemory {
 public:
  BorrowedMemory(Context& context, std::size_t bytes);
  ~BorrowedMemory();
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;
  std::byte* memory() const noexcept { return block_.memory(); }

 private:
  void swap() noexcept;
  detail::ContextState& state_;
  Block block_;
};

// Returns a stop point for a function that has not acquired the context yet.
core::StopPoint stop_point(Context& context, std::string_view function);

}  // namespace qkv::runtime

#endif  // QKV_RUNTIME_TASKS_H_
