// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <qkv/context.h>
#include <qkv/error.h>

#include "runtime/worker_pool.h"
#include "tests/runtime/executors.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

using Executors = Watched;
using Pool = Watched;

// Returns the number of threads of this process.
std::ptrdiff_t thread_count() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Waits until this process has `count` threads: the kernel lists a thread a moment longer than
// join() waits for it.
void wait_for_threads(std::ptrdiff_t count) {
  while (thread_count() != count) std::this_thread::yield();
}

// Returns the number of threads before the test starts any. A sanitizer may start a thread of its
// own when the first thread starts, so a thread is started and ended before they are counted.
std::ptrdiff_t settled_thread_count() {
  pid_t number = 0;
  std::thread([&] { number = ::gettid(); }).join();
  while (std::filesystem::exists("/proc/self/task/" + std::to_string(number))) {
    std::this_thread::yield();
  }
  return thread_count();
}

TEST_F(Executors, RunEachIndexOnce) {
  for (const NamedExecutor& each : all_executors()) {
    for (const Index count : {-1, 0, 1, 2, 3, 6, 7, 8, 100}) {
      SCOPED_TRACE(each.name + ", count " + std::to_string(count));
      std::vector<std::atomic<int>> times(static_cast<std::size_t>(std::max<Index>(count, 0)));
      run(each.executor, count, [&](Index i) { ++times.at(static_cast<std::size_t>(i)); });
      EXPECT_TRUE(std::ranges::all_of(times, [](const auto& n) { return n == 1; }));
    }
  }
}

TEST_F(Executors, OneBodyRunsOnTheCallingThread) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    std::thread::id seen;
    run(each.executor, 1, [&](Index) { seen = std::this_thread::get_id(); });
    EXPECT_EQ(seen, std::this_thread::get_id());
  }
}

TEST_F(Executors, CallersAreAskedForNoMoreThanTheirConcurrency) {
  static std::vector<Index> asked;
  asked.clear();
  const Executor executor(
      [](void* pool, Index count, Executor::Body body, void* state) {
        asked.push_back(count);
        parallel_for_in_order(pool, count, body, state);
      },
      nullptr, 3);
  for (const Index count : {1, 2, 3, 4, 50}) run(executor, count, [](Index) {});
  EXPECT_EQ(asked, (std::vector<Index>{2, 3, 3, 3}));
}

TEST_F(Executors, CallersGetTheirPool) {
  int pool = 0;
  const Executor executor(
      [](void* p, Index count, Executor::Body body, void* state) {
        ++*static_cast<int*>(p);
        parallel_for_in_order(nullptr, count, body, state);
      },
      &pool, 2);
  run(executor, 2, [](Index) {});
  EXPECT_EQ(pool, 1);
}

TEST_F(Executors, RefuseWhatCannotRun) {
  EXPECT_EQ(message_of([] { Executor::threads(-1); }),
            "Executor::threads: threads must be in 0 (one per usable processor) to 4096, got -1");
  EXPECT_EQ(message_of([] { Executor(nullptr, nullptr, 2); }),
            "Executor: parallel_for must not be null");
  EXPECT_EQ(message_of([] { Executor(parallel_for_in_order, nullptr, 0); }),
            "Executor: concurrency must be 1 or more, got 0");
}

TEST_F(Executors, ConcurrencyIsWhatWasAskedFor) {
  EXPECT_EQ(Executor().concurrency(), 1);
  EXPECT_EQ(Executor::threads(1).concurrency(), 1);
  EXPECT_EQ(Executor::threads(7).concurrency(), 7);
  EXPECT_EQ(Executor(parallel_for_in_order, nullptr, 9).concurrency(), 9);
}

TEST_F(Executors, ZeroThreadsMeansProcessorsOfThisProcess) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(Executor::threads(0).concurrency(), CPU_COUNT(&before));

  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(Executor::threads(0).concurrency(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST_F(Pool, BodiesRunAtTheSameTime) {
  // Each body waits for all others; the calling thread is one of them.
  for (const int threads : {2, 3, 7}) {
    const Executor executor = Executor::threads(threads);
    std::barrier all(threads);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    run(executor, threads, [&](Index) {
      all.arrive_and_wait();
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(threads));
    EXPECT_TRUE(seen.contains(std::this_thread::get_id()));
  }
}

TEST_F(Pool, ThreadsStartWhenNeededAndEndWithTheLastCopy) {
  const std::ptrdiff_t before = settled_thread_count();
  std::optional<Executor> copy;
  {
    const Executor executor = Executor::threads(5);
    EXPECT_EQ(thread_count(), before);
    run(executor, 1, [](Index) {});
    EXPECT_EQ(thread_count(), before);
    run(executor, 3, [](Index) {});
    EXPECT_EQ(thread_count(), before + 2);
    run(executor, 5, [](Index) {});
    copy = executor;
    run(*copy, 5, [](Index) {});
    EXPECT_EQ(thread_count(), before + 4);
  }
  run(*copy, 5, [](Index) {});
  EXPECT_EQ(thread_count(), before + 4);
  copy.reset();
  wait_for_threads(before);
}

TEST_F(Pool, RunsInsideRuns) {
  for (const int threads : {2, 3, 7}) {
    const Executor executor = Executor::threads(threads);
    std::atomic<int> leaves{0};
    run(executor, 8, [&](Index) {
      run(executor, 8, [&](Index) { run(executor, 8, [&](Index) { ++leaves; }); });
    });
    EXPECT_EQ(leaves, 8 * 8 * 8);
  }
}

TEST_F(Pool, ManyThreadsShareIt) {
  const Executor executor = Executor::threads(3);
  std::vector<std::thread> callers;
  std::vector<int> wrong(6, 0);
  for (std::size_t c = 0; c < wrong.size(); ++c) {
    callers.emplace_back([&executor, &bad = wrong[c]] {
      for (int repeat = 0; repeat < 500; ++repeat) {
        std::vector<int> times(3, 0);
        run(executor, 3, [&](Index i) { ++times[static_cast<std::size_t>(i)]; });
        bad += times != std::vector<int>{1, 1, 1};
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, std::vector<int>(6, 0));
}

TEST_F(Pool, TenThousandTinyRuns) {
  const Executor executor = Executor::threads(4);
  Index sum = 0;
  for (Index repeat = 0; repeat < 10000; ++repeat) {
    const Index count = 2 + repeat % 3;
    std::vector<Index> seen(4, 0);
    run(executor, count, [&](Index i) { seen[static_cast<std::size_t>(i)] = i + 1; });
    for (const Index value : seen) sum += value;
  }
  // The runs sum to 1 + 2, 1 + 2 + 3 and 1 + 2 + 3 + 4 in rotation: 3334 times 3, 3333 times 6 and
  // 10.
  EXPECT_EQ(sum, 3334 * 3 + 3333 * (6 + 10));
}

// The test works for any number of processors. The pauses let threads stop polling and sleep.
TEST_F(Pool, WaitingThreadsFindTheNextRun) {
  for (const detail::Waiting waiting : {detail::Waiting::kSleeps, detail::Waiting::kLooksFirst}) {
    detail::WorkerPool pool(3, waiting);
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int caller = 0; caller < 2; ++caller) {
      callers.emplace_back([&] {
        for (int repeat = 0; repeat < 300; ++repeat) {
          const std::chrono::microseconds gap(repeat % 20 == 0 ? 200 : repeat % 20);
          std::this_thread::sleep_for(gap);
          std::atomic<int> bodies{0};
          const auto count = [](void* state, Index) { ++*static_cast<std::atomic<int>*>(state); };
          const auto late = [](void* state, Index) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            ++*static_cast<std::atomic<int>*>(state);
          };
          pool.run(2 + repeat % 3, repeat % 20 == 10 ? +late : +count, &bodies);
          wrong += bodies != 2 + repeat % 3;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0);
    // All three meet at once, which needs both workers, whether they poll or sleep.
    std::barrier all(3);
    const auto meet = [](void* state, Index) {
      static_cast<std::barrier<>*>(state)->arrive_and_wait();
    };
    for (int repeat = 0; repeat < 20; ++repeat) pool.run(3, meet, &all);
  }
}

TEST_F(Pool, ThousandPoolsComeAndGo) {
  std::atomic<int> bodies{0};
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const Executor executor = Executor::threads(3);
    run(executor, repeat % 4, [&](Index) { ++bodies; });
  }
  EXPECT_EQ(bodies, 250 * (0 + 1 + 2 + 3));
}

TEST_F(Pool, DoesWithoutThreadsTheSystemRefuses) {
  const std::ptrdiff_t threads = settled_thread_count();
  // No address space holds such a stack, so no thread can start.
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 50), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const Executor executor = Executor::threads(4);
  std::vector<int> times(4, 0);
  run(executor, 4, [&](Index i) { ++times[static_cast<std::size_t>(i)]; });
  const std::ptrdiff_t threads_refused = thread_count();
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_EQ(times, std::vector<int>(4, 1));
  EXPECT_EQ(threads_refused, threads) << "the threads were not refused: nothing was tested";

  run(executor, 4, [&](Index i) { ++times[static_cast<std::size_t>(i)]; });
  EXPECT_EQ(times, std::vector<int>(4, 2));
  EXPECT_EQ(thread_count(), threads + 3);
}

}  // namespace
}  // namespace qkv::test
