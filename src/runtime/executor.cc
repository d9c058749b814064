// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include <sched.h>

#include <qkv/context.h>
#include <qkv/error.h>

#include "runtime/worker_pool.h"

namespace qkv {

namespace {

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
};

// Returns the number of processors that this process may use, at least 1. hardware_concurrency()
// counts all processors of the machine.
int usable_processors() {
  // The kernel rejects a set smaller than its own, so the set is doubled until it suffices. 1024
  // processors are enough for most machines.
  for (std::size_t capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(capacity));
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (set != nullptr && sched_getaffinity(0, bytes, set.get()) == 0) {
      return std::max(1, CPU_COUNT_S(bytes, set.get()));
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// A run with more indices than concurrent bodies. Each body takes indices until none is left.
struct Indices {
  const Executor::Body body;
  void* const state;
  const Index count;
  std::atomic<Index> next{0};
};

void take_indices(void* state, Index /*worker*/) {
  Indices& all = *static_cast<Indices*>(state);
  for (;;) {
    const Index index = all.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= all.count) return;
    all.body(all.state, index);
  }
}

}  // namespace

Executor::Executor() noexcept = default;

Executor Executor::threads(int threads) {
  if (threads < 0 || threads > kMostThreads) {
    throw Error("Executor::threads", "threads",
                "must be in 0 (one per usable processor) to " + std::to_string(kMostThreads) +
                    ", got " + std::to_string(threads));
  }
  Executor executor;
  executor.concurrency_ = threads == 0 ? usable_processors() : threads;
  if (executor.concurrency_ > 1) {
    // If there were more threads than processors, polling threads would slow down working threads.
    const bool looks = executor.concurrency_ <= usable_processors();
    executor.pool_ = std::make_shared<detail::WorkerPool>(
        executor.concurrency_, looks ? detail::Waiting::kLooksFirst : detail::Waiting::kSleeps);
  }
  return executor;
}

Executor::Executor(ParallelFor parallel_for, void* pool, int concurrency)
    : parallel_for_(parallel_for), caller_pool_(pool), concurrency_(concurrency) {
  if (parallel_for == nullptr) throw Error("Executor", "parallel_for", "must not be null");
  if (concurrency < 1) {
    throw Error("Executor", "concurrency", "must be 1 or more, got " + std::to_string(concurrency));
  }
}

void Executor::run(Index count, Body body, void* state) const {
  if (count <= 1 || concurrency_ == 1) {
    for (Index index = 0; index < count; ++index) body(state, index);
    return;
  }
  if (count > concurrency_) {
    Indices all{.body = body, .state = state, .count = count};
    return run(concurrency_, take_indices, &all);
  }
  if (pool_ != nullptr) return pool_->run(count, body, state);
  parallel_for_(caller_pool_, count, body, state);
}

}  // namespace qkv
