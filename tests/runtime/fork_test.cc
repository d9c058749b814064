// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <qkv/context.h>

#include "runtime/tasks.h"
#include "tests/runtime/executors.h"

#if defined(__SANITIZE_THREAD__)
#define QKV_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QKV_THREAD_SANITIZER 1
#endif
#endif

namespace qkv::test {
namespace {

using Fork = Watched;

// A fixture for tests in which a forked child starts threads.
class ForkAndStart : public Watched {
 protected:
  void SetUp() override {
#ifdef QKV_THREAD_SANITIZER
    GTEST_SKIP() << "the thread sanitizer supports no new threads in the child of a fork";
#endif
  }
};

// Runs `f` in a forked child and returns the child's exit status (0: f returned true), or -1 if the
// child did not exit by itself. A child that hangs is killed.
template <class F>
int status_of_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kPatience);  // alarms are not inherited
    _exit(f() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// Returns whether `threads` bodies, each of which waits for the others, run at the same time.
bool runs_on(const Executor& executor, int threads) {
  std::latch all(threads);
  std::atomic<int> bodies{0};
  run(executor, threads, [&](Index) {
    all.arrive_and_wait();
    ++bodies;
  });
  return bodies == threads;
}

bool tasks_run(Context& context) {
  std::atomic<Index> sum{0};
  runtime::Call call(context, "test", 0, 64);
  call.for_each_task(1000, [&](Index task, runtime::Arena&) { sum += task; });
  return sum == 999 * 1000 / 2;
}

TEST_F(Fork, ChildReportsFailure) {
  EXPECT_EQ(status_of_child([] { return true; }), 0);
  EXPECT_EQ(status_of_child([] { return false; }), 1);
}

TEST_F(ForkAndStart, ChildStartsWorkersOfItsOwn) {
  const Executor executor = Executor::threads(3);
  ASSERT_TRUE(runs_on(executor, 3));
  EXPECT_EQ(status_of_child([&] { return runs_on(executor, 3) && runs_on(executor, 3); }), 0);
  EXPECT_TRUE(runs_on(executor, 3)) << "the parent's workers must be as before";
}

TEST_F(ForkAndStart, ChildOfAPoolThatNeverRan) {
  const Executor executor = Executor::threads(3);
  EXPECT_EQ(status_of_child([&] { return runs_on(executor, 3); }), 0);
  EXPECT_TRUE(runs_on(executor, 3));
}

TEST_F(ForkAndStart, GrandchildToo) {
  const Executor executor = Executor::threads(2);
  ASSERT_TRUE(runs_on(executor, 2));
  EXPECT_EQ(status_of_child([&] {
              return runs_on(executor, 2) &&
                     status_of_child([&] { return runs_on(executor, 2); }) == 0;
            }),
            0);
}

TEST_F(Fork, ChildEndsThePoolWithoutItsThreads) {
  auto executor = std::make_unique<Executor>(Executor::threads(3));
  ASSERT_TRUE(runs_on(*executor, 3));
  EXPECT_EQ(status_of_child([&] {
              executor.reset();
              return true;
            }),
            0);
}

TEST_F(ForkAndStart, ChildEndsThePoolWithThreadsOfItsOwn) {
  auto executor = std::make_unique<Executor>(Executor::threads(3));
  ASSERT_TRUE(runs_on(*executor, 3));
  EXPECT_EQ(status_of_child([&] {
              const bool ran = runs_on(*executor, 3);
              executor.reset();
              return ran;
            }),
            0);
}

TEST_F(ForkAndStart, ChildRunsTasksOnTheParentsContext) {
  Context context(Executor::threads(4));
  ASSERT_TRUE(tasks_run(context));
  EXPECT_EQ(status_of_child([&] { return tasks_run(context) && tasks_run(context); }), 0);
  EXPECT_TRUE(tasks_run(context));
}

TEST_F(ForkAndStart, WhileOtherThreadsKeepThePoolBusy) {
  // The child often begins with the parent's mutex held by a thread that the child does not have.
  const Executor executor = Executor::threads(3);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) run(executor, 3, [](Index) {});
  });
  int failed = 0;
  for (int repeat = 0; repeat < 100; ++repeat) {
    failed += status_of_child([&] {
                std::atomic<int> bodies{0};
                run(executor, 3, [&](Index) { ++bodies; });
                return bodies == 3;
              }) != 0;
  }
  stop = true;
  busy.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace qkv::test
