// SPDX-License-Identifier: Apache-2.0
#include "runtime/tasks.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <exception>
#include <string>

#include <qkv/error.h>

#include "runtime/context_state.h"

namespace qkv::runtime {

core::StopPoint stop_point(Context& context, std::string_view function) {
  return {context.state().stop, function};
}

// ---- a call ---------------------------------------------------------------------------------

Call::Call(Context& context, std::string_view function)
    : state_(context.state()), function_(function) {
  if (state_.in_use.exchange(true, std::memory_order_acquire)) {
    throw Error(function, "context", "is in use by another call");
  }
}

// The other constructor has returned before reserve() is called, so ~Call runs even if reserve()
// throws.
Call::Call(Context& context, std::string_view function, std::size_t shared, std::size_t per_worker)
    : Call(context, function) {
  reserve(shared, per_worker);
}

void Call::reserve(std::size_t shared, std::size_t per_worker) {
  state_.reserve(shared, per_worker);
  shared_ = Arena(state_.shared.memory(), state_.shared.bytes());
}

Call::~Call() { state_.in_use.store(false, std::memory_order_release); }

int Call::concurrency() const noexcept { return state_.executor.concurrency(); }

core::StopPoint Call::stop_point() const noexcept { return {state_.stop, function_}; }

void Call::run(Index tasks, Task task, const void* state) {
  failed_.store(false, std::memory_order_relaxed);
  const Index bodies = std::min<Index>(state_.executor.concurrency(), tasks);
  if (bodies <= 1) return run_serially(tasks, task, state);
  run_on_workers(bodies, tasks, task, state);
}

void Call::run_serially(Index tasks, Task task, const void* state) const {
  Arena arena(state_.first.memory(), state_.first.bytes());
  const core::StopPoint stop = stop_point();
  for (Index i = 0; i < tasks; ++i) {
    stop();
    arena.reset();
    task(state, i, arena);
  }
}

// ---- memory that outlives a call ------------------------------------------------------------

BorrowedMemory::BorrowedMemory(Context& context, std::size_t bytes) : state_(context.state()) {
  swap();
  block_.grow(bytes);
}

BorrowedMemory::~BorrowedMemory() { swap(); }

// Exchanges this block with the context's, unless a call uses the context.
void BorrowedMemory::swap() noexcept {
  if (state_.in_use.exchange(true, std::memory_order_acquire)) return;
  block_.swap(state_.lendable);
  state_.count_held();
  state_.in_use.store(false, std::memory_order_release);
}

// ---- on several workers ---------------------------------------------------------------------

// The state that the bodies of one run share, on the stack of the calling thread.
struct Call::Run {
  Call& call;
  const Index bodies;
  const Index tasks;
  const Task task;
  const void* const state;
  std::fenv_t environment{};
  std::exception_ptr error{};  // written by the body that set call.failed_
  // This is the only member to which every task writes.
  alignas(core::kScratchAlignment) std::atomic<Index> next{0};

  // Takes tasks until none is left.
  void work(Index worker) {
    if (worker < 0 || worker >= bodies) {
      throw Error(call.function_, "executor",
                  "requested body " + std::to_string(worker) + " of " + std::to_string(bodies));
    }
    const Block& block = call.state_.worker(worker);
    Arena arena(block.memory(), block.bytes());
    const core::StopPoint stop = call.stop_point();
    for (;;) {
      const Index i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= tasks) return;
      stop();
      arena.reset();
      task(state, i, arena);
    }
  }

  // Stores the first exception and leaves no task to the other workers. Called in a catch block.
  void fail() noexcept {
    next.store(tasks, std::memory_order_relaxed);
    if (!call.failed_.exchange(true, std::memory_order_relaxed)) error = std::current_exception();
  }

  static void body(void* state, Index worker) {
    Run& run = *static_cast<Run*>(state);
    std::fenv_t previous;
    std::fegetenv(&previous);
    std::fesetenv(&run.environment);
    try {
      run.work(worker);
    } catch (...) {
      run.fail();
    }
    std::fesetenv(&previous);
  }
};

void Call::run_on_workers(Index workers, Index tasks, Task task, const void* state) {
  Run run{.call = *this, .bodies = workers, .tasks = tasks, .task = task, .state = state};
  std::fegetenv(&run.environment);
  state_.executor.run(workers, &Run::body, &run);
  if (run.error != nullptr) std::rethrow_exception(run.error);
  // One body would have run all tasks, so this executor has called none.
  if (run.next.load(std::memory_order_relaxed) < tasks) {
    throw Error(function_, "executor", "returned without running the tasks it was given");
  }
}

}  // namespace qkv::runtime
