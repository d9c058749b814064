// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CONTEXT_H_
#define QKV_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <qkv/error.h>
#include <qkv/export.h>
#include <qkv/view.h>

namespace qkv {

namespace detail {
class WorkerPool;
struct ContextState;
}  // namespace detail

// Runs the tasks of a call. Results have the same bits for any executor.
class QKV_API Executor {
 public:
  using Body = void (*)(void* state, Index index);
  // Calls body(state, index) once for each index in 0..count-1, in any order, on any threads,
  // possibly one after the other, and returns when all have returned. `body` does not throw. If
  // this function itself throws, no body may still be running; the call passes the exception on.
  using ParallelFor = void (*)(void* pool, Index count, Body body, void* state);

  // The calling thread alone.
  Executor() noexcept;
  // The maximum for threads().
  static constexpr int kMostThreads = 4096;
  // A pool of worker threads, `threads` including the calling one (0: one per processor this
  // process may use). Copies share the pool, even concurrently; it ends with the last copy.
  // Workers start when a run first needs them, and again in the child of a fork(); if the system
  // cannot start some, the pool works without them. After a run they look for the next one for 50
  // microseconds before they sleep, unless the pool has more threads than there are processors.
  // Throws Error if threads < 0 or > kMostThreads.
  static Executor threads(int threads);
  // The caller's own threads: at most `concurrency` bodies are requested at a time, and a single
  // one runs on the calling thread. Throws Error if `parallel_for` is null or concurrency < 1.
  Executor(ParallelFor parallel_for, void* pool, int concurrency);

  int concurrency() const noexcept { return concurrency_; }
  // Runs body(state, 0..count-1); for count > 1 on the pool or the caller's threads.
  void run(Index count, Body body, void* state) const;

 private:
  std::shared_ptr<detail::WorkerPool> pool_;
  ParallelFor parallel_for_ = nullptr;
  void* caller_pool_ = nullptr;
  int concurrency_ = 1;
};

// Where calls run: an executor, the scratch memory they share, a stop flag. One call at a time:
// a second call on a context in use throws Error. A moved-from context may only be
// assigned to or destroyed.
class QKV_API Context {
 public:
  Context();
  explicit Context(Executor executor);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  const Executor& executor() const noexcept;
  // Read before each task, and periodically in long ones; if it is true the call throws
  // Cancelled. Null (the default): no flag. The flag must outlive the calls.
  void set_stop_flag(const std::atomic<bool>* stop) noexcept;
  const std::atomic<bool>* stop_flag() const noexcept;
  // Uses this implementation ("reference") or fails, naming the first reason; "" (the default):
  // the first in the list that supports the problem. An unknown name is an Error of the call or
  // Plan that uses it. With "dot/avx2" the loops of layers use its CPU target.
  void force_path(std::string_view name);
  const std::string& forced_path() const noexcept;
  // Bytes held by the calls made so far; freed by release_scratch (which does nothing
  // during a call) or with the context.
  std::size_t scratch_bytes() const noexcept;
  void release_scratch() noexcept;

  detail::ContextState& state() noexcept { return *state_; }  // for the library

 private:
  std::unique_ptr<detail::ContextState> state_;
};

}  // namespace qkv

#endif  // QKV_CONTEXT_H_
