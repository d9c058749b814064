// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_WORKER_POOL_H_
#define QKV_RUNTIME_WORKER_POOL_H_

#include <atomic>

#include <qkv/context.h>
#include <qkv/view.h>

namespace qkv::detail {

class WorkerThreads;

// The behaviour of a thread without work.
enum class Waiting {
  kSleeps,
  kLooksFirst,  // polls for work for some microseconds, then sleeps
};

// The threads of Executor::threads. They start when a run first needs them and sleep between runs.
// With Waiting::kLooksFirst they poll for some microseconds before they sleep. Any number of
// threads may call run() at once, also from inside a body: the calling thread takes bodies of its
// own run until none is left and then waits only for bodies that workers have begun, so each run
// ends whether or not a worker is free.
class WorkerPool {
 public:
  // `threads` >= 2, including the calling one.
  WorkerPool(int threads, Waiting waiting) noexcept : workers_(threads - 1), waiting_(waiting) {}
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs body(state, 0..count-1), each once. It does not allocate once the workers have started. If
  // the system cannot start a thread, the pool works without it.
  void run(Index count, Executor::Body body, void* state);

 private:
  WorkerThreads& threads();

  const int workers_;
  const Waiting waiting_;
  std::atomic<WorkerThreads*> threads_of_pool_{nullptr};
};

}  // namespace qkv::detail

#endif  // QKV_RUNTIME_WORKER_POOL_H_
