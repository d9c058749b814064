// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_RUNTIME_EXECUTORS_H_
#define QKV_TESTS_RUNTIME_EXECUTORS_H_

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <qkv/context.h>

// Executors of every kind, for the tests of the runtime, and a fixture that ends a deadlock.
namespace qkv::test {

inline void parallel_for_in_order(void*, Index count, Executor::Body body, void* state) {
  for (Index i = 0; i < count; ++i) body(state, i);
}

inline void parallel_for_reversed(void*, Index count, Executor::Body body, void* state) {
  for (Index i = count; i-- > 0;) body(state, i);
}

// Runs each body on a new thread, and none on the calling one.
inline void parallel_for_threads(void*, Index count, Executor::Body body, void* state) {
  std::vector<std::thread> threads;
  for (Index i = 0; i < count; ++i) threads.emplace_back(body, state, i);
  for (std::thread& thread : threads) thread.join();
}

inline void parallel_for_async(void*, Index count, Executor::Body body, void* state) {
  std::vector<std::future<void>> bodies;
  for (Index i = 0; i < count; ++i) {
    bodies.push_back(std::async(std::launch::async, body, state, i));
  }
  for (std::future<void>& returned : bodies) returned.get();
}

struct NamedExecutor {
  std::string name;
  Executor executor;
  bool starts_threads = false;  // a run starts threads, which allocates memory
};

inline std::vector<NamedExecutor> all_executors() {
  return {{"serial", Executor()},
          {"pool of 0", Executor::threads(0)},
          {"pool of 1", Executor::threads(1)},
          {"pool of 2", Executor::threads(2)},
          {"pool of 7", Executor::threads(7)},
          {"caller's, in order", Executor(parallel_for_in_order, nullptr, 3)},
          {"caller's, reversed", Executor(parallel_for_reversed, nullptr, 4)},
          {"caller's, threads", Executor(parallel_for_threads, nullptr, 5), true},
          {"caller's, std::async", Executor(parallel_for_async, nullptr, 2), true},
          {"caller's, one at a time", Executor(parallel_for_threads, nullptr, 1)}};
}

// Calls executor.run for a callable.
template <class F>
void run(const Executor& executor, Index count, F f) {
  executor.run(
      count, [](void* state, Index i) { (*static_cast<F*>(state))(i); }, &f);
}

// Wraps an executor and counts the bodies that have returned.
class Noting {
 public:
  explicit Noting(Executor inner) : inner_(std::move(inner)) {}
  Executor executor() { return {&parallel_for, this, inner_.concurrency()}; }
  Index returned() const { return returned_; }

 private:
  static void parallel_for(void* self, Index count, Executor::Body body, void* state) {
    Noting& noting = *static_cast<Noting*>(self);
    run(noting.inner_, count, [&](Index i) {
      body(state, i);
      ++noting.returned_;
    });
  }

  Executor inner_;
  std::atomic<Index> returned_{0};
};

// The seconds after which a test is taken to hang: many times what the slowest machine needs.
inline constexpr unsigned kPatience = 1800;

// A test that hangs is killed by SIGALRM.
class Watched : public ::testing::Test {
 protected:
  Watched() { alarm(kPatience); }
  ~Watched() override { alarm(0); }
};

}  // namespace qkv::test

#endif  // QKV_TESTS_RUNTIME_EXECUTORS_H_
