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

// An executor runs the tasks of a call. Results are bit-identical for any executor.
class QKV_API Executor {
 public:
  using Body = void (*)(void* state, Index index);
  // A parallel loop: calls body(state, index) once for each index in 0..count-1 and returns when
  // all these calls have returned. They may run in any order, on any threads, one after the other
  // or at once. `body` does not throw. If the loop itself throws, no body may still be running, and
  // run() passes the exception on.
  using ParallelFor = void (*)(void* pool, Index count, Body body, void* state);

  // Runs everything on the calling thread.
  Executor() noexcept;
  // The maximum for the argument of threads().
  static constexpr int kMostThreads = 4096;
  // A pool of `threads` threads, the calling one included; 0 means one per processor that this
  // process may use. Copies share the pool, even concurrently, and it ends with the last copy.
  // Workers start when a run first needs them, and again in the child of a fork(); if the system
  // cannot start some, the pool works without them. After a run the workers poll for the next one
  // for 50 microseconds before they sleep, unless the pool has more threads than there are
  // processors. Throws Error if threads < 0 or > kMostThreads.
  static Executor threads(int threads);
  // Runs on the caller's own threads: at most `concurrency` bodies are requested at a time, and a
  // single one runs on the calling thread. Throws Error if `parallel_for` is null or concurrency <
  // 1.
  Executor(ParallelFor parallel_for, void* pool, int concurrency);

  int concurrency() const noexcept { return concurrency_; }
  // Calls body(state, index) for each index in 0..count-1. If count > 1 the calls run on the pool
  // or the caller's threads.
  void run(Index count, Body body, void* state) const;

 private:
  std::shared_ptr<detail::WorkerPool> pool_;
  ParallelFor parallel_for_ = nullptr;
  void* caller_pool_ = nullptr;
  int concurrency_ = 1;
};

// The place where calls run: an executor, the scratch memory that calls reuse, and a stop flag. A
// context serves one call at a time: a second call on a context in use throws Error. A moved-from
// context may only be assigned to or destroyed.
class QKV_API Context {
 public:
  Context();
  explicit Context(Executor executor);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  const Executor& executor() const noexcept;
  // The flag is read before each task, and periodically in long tasks; if it is true the call
  // throws Cancelled. Null, the default, means that there is no flag. The flag must outlive the
  // calls.
  void set_stop_flag(const std::atomic<bool>* stop) noexcept;
  const std::atomic<bool>* stop_flag() const noexcept;
  // Makes calls use the implementation of this name ("reference") or fail, with an error that says
  // why it cannot run. With "", the default, a call uses the first implementation that supports its
  // problem, best CPU target first. An unknown name is an Error of the call or Plan that uses it.
  // Layers use the CPU target of the name, avx2 for "dot/avx2".
  void force_path(std::string_view name);
  const std::string& forced_path() const noexcept;
  // The bytes of scratch memory kept from the calls made so far. They are freed by
  // release_scratch() (which does nothing during a call) or with the context.
  std::size_t scratch_bytes() const noexcept;
  void release_scratch() noexcept;

  detail::ContextState& state() noexcept { return *state_; }  // for the library

 private:
  std::unique_ptr<detail::ContextState> state_;
};

}  // namespace qkv

#endif  // QKV_CONTEXT_H_
