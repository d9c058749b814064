// SPDX-License-Identifier: Apache-2.0
#include "runtime/tasks.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cfenv>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/context.h>
#include <qkv/error.h>

#include "tests/runtime/executors.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

using runtime::Arena;
using runtime::Call;
using Tasks = Watched;

TEST_F(Tasks, RunEachOnce) {
  for (const NamedExecutor& each : all_executors()) {
    Context context(each.executor);
    for (const Index tasks : {0, 1, 2, 3, 7, 8, 1000}) {
      SCOPED_TRACE(each.name + ", tasks " + std::to_string(tasks));
      std::vector<std::atomic<int>> times(static_cast<std::size_t>(tasks));
      Call call(context, "attention", 0, 0);
      call.for_each_task(tasks,
                         [&](Index task, Arena&) { ++times.at(static_cast<std::size_t>(task)); });
      EXPECT_TRUE(std::ranges::all_of(times, [](const auto& n) { return n == 1; }));
    }
  }
}

TEST_F(Tasks, RunOnceEachHoweverManyWorkersPull) {
  for (const int threads : {2, 3, 7}) {
    Context context(Executor::threads(threads));
    std::vector<std::atomic<int>> times(300'000);
    Call call(context, "attention", 0, 0);
    call.for_each_task(300'000,
                       [&](Index task, Arena&) { ++times[static_cast<std::size_t>(task)]; });
    EXPECT_TRUE(std::ranges::all_of(times, [](const auto& n) { return n == 1; }));
  }
}

TEST_F(Tasks, RunAgainAndAgainInOneCall) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    Call call(context, "attention", 64 * sizeof(int), 0);
    const auto numbers = call.shared().take<int>(64);
    std::ranges::fill(numbers, 0);
    // The numbers are plain integers: each loop must see the writes of the loop before it.
    for (int repeat = 0; repeat < 100; ++repeat) {
      call.for_each_task(64, [&](Index task, Arena&) {
        const auto i = static_cast<std::size_t>(task);
        numbers[i] += numbers[i] == repeat;
      });
    }
    EXPECT_EQ(std::ranges::count(numbers, 100), 64);
  }
}

TEST_F(Tasks, WorkersHaveArenasOfTheirOwn) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    Call call(context, "attention", 0, 4096);
    std::atomic<int> overwritten{0};
    call.for_each_task(200, [&](Index task, Arena& arena) {
      const auto mine = arena.take<Index>(512);
      std::ranges::fill(mine, task);
      std::this_thread::yield();
      overwritten += std::ranges::count(mine, task) != 512;
    });
    EXPECT_EQ(overwritten, 0);
  }
}

TEST_F(Tasks, ScratchCanBeTakenWholeButNotMore) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    Call call(context, "attention", 0, Arena::cost<float>(100) + Arena::cost<char>(3));
    call.for_each_task(20, [](Index, Arena& arena) {
      arena.take<float>(100);
      arena.take<char>(3);
    });
    EXPECT_THROW(call.for_each_task(20,
                                    [](Index, Arena& arena) {
                                      arena.take<float>(100);
                                      arena.take<char>(65);
                                    }),
                 std::logic_error);
  }
}

TEST_F(Tasks, AnExceptionReachesTheCaller) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    const auto fail_at = [&](Index bad) {
      Call call(context, "attention", 0, 0);
      call.for_each_task(100, [&](Index task, Arena&) {
        if (task == bad) throw std::range_error("task " + std::to_string(task));
      });
    };
    for (const Index bad : {0, 1, 50, 99}) {
      EXPECT_EQ(message_of<std::range_error>([&] { fail_at(bad); }), "task " + std::to_string(bad));
    }
    fail_at(100);  // no task throws: the context is usable
  }
}

TEST_F(Tasks, AfterAnExceptionNoTaskStarts) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Noting noting(each.executor);
    Context context(noting.executor());
    const Index others = context.executor().concurrency() - 1;
    std::atomic<Index> started{0};
    EXPECT_THROW(
        {
          Call call(context, "attention", 0, 0);
          call.for_each_task(100'000, [&](Index task, Arena&) {
            ++started;
            if (task == 10) throw std::range_error("ten");
            // Tasks that other workers begin in the meantime last until the body that threw has
            // returned.
            while (task > 10 && others > 0 && noting.returned() == 0) std::this_thread::yield();
          });
        },
        std::range_error);
    EXPECT_GE(started, 11);
    EXPECT_LE(started, 11 + others);
  }
}

TEST_F(Tasks, TheFirstExceptionWins) {
  // Two tasks meet. One throws at once, the other when the body of the first has returned.
  for (const Index early : {0, 1}) {
    Noting noting(Executor::threads(2));
    Context context(noting.executor());
    std::barrier both(2);
    EXPECT_EQ(message_of<std::range_error>([&] {
                Call call(context, "attention", 0, 0);
                call.for_each_task(2, [&](Index task, Arena&) {
                  both.arrive_and_wait();
                  if (task == early) throw std::range_error("early");
                  while (noting.returned() == 0) std::this_thread::yield();
                  throw std::range_error("late");
                });
              }),
              "early");
  }
}

TEST_F(Tasks, AnyTypeCanBeThrown) {
  Context context(Executor::threads(3));
  Call call(context, "attention", 0, 0);
  EXPECT_THROW(call.for_each_task(9, [](Index, Arena&) { throw 7; }), int);
}

TEST_F(Tasks, AStopFlagSetBeforehandLetsNoTaskStart) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    std::atomic<bool> stop{true};
    context.set_stop_flag(&stop);
    std::atomic<int> started{0};
    const auto call_it = [&](Index tasks) {
      Call call(context, "attention", 0, 0);
      call.for_each_task(tasks, [&](Index, Arena&) { ++started; });
    };
    EXPECT_EQ(message_of<Cancelled>([&] { call_it(20); }), Cancelled("attention").what());
    EXPECT_EQ(message_of<Cancelled>([&] { call_it(1); }), Cancelled("attention").what());
    EXPECT_EQ(started, 0);
    call_it(0);  // without tasks the flag is not read
    stop = false;
    call_it(20);
    EXPECT_EQ(started, 20);
    context.set_stop_flag(nullptr);
    stop = true;
    call_it(20);
    EXPECT_EQ(started, 40);
  }
}

TEST_F(Tasks, AStopFlagIsReadBeforeEachTask) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    std::atomic<bool> stop{false};
    context.set_stop_flag(&stop);
    std::atomic<int> after_stop{0};
    EXPECT_THROW(
        {
          Call call(context, "attention", 0, 0);
          call.for_each_task(100'000, [&](Index task, Arena&) {
            after_stop += stop.load();
            if (task == 10) stop = true;
          });
        },
        Cancelled);
    // Each other worker may have read the flag just before it was set.
    EXPECT_LT(after_stop, context.executor().concurrency());
  }
}

TEST_F(Tasks, AStopFlagAfterTheLastTaskChangesNothing) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    std::atomic<bool> stop{false};
    context.set_stop_flag(&stop);
    std::atomic<int> done{0};
    Call call(context, "attention", 0, 0);
    call.for_each_task(10, [&](Index, Arena&) {
      if (++done == 10) stop = true;
    });
    EXPECT_EQ(done, 10);
  }
}

TEST_F(Tasks, ComputeInTheCallersFloatingPointEnvironment) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    std::atomic<int> upward{0};
    const auto count_upward = [&] {
      Call call(context, "attention", 0, 0);
      call.for_each_task(50, [&](Index, Arena&) {
        upward += std::fegetround() == FE_UPWARD;
        std::this_thread::yield();
      });
    };
    count_upward();  // the workers have started, rounding to nearest
    EXPECT_EQ(upward, 0);
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    count_upward();
    ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
    EXPECT_EQ(upward, 50);
    count_upward();
    EXPECT_EQ(upward, 50);
  }
}

TEST_F(Tasks, LeaveTheCallersThreadsAsTheyWere) {
  // The caller's parallel_for runs the tasks on a thread that rounds downward.
  static std::atomic<int> changed;
  changed = 0;
  Context context(Executor(
      [](void*, Index count, Executor::Body body, void* state) {
        std::fesetround(FE_DOWNWARD);
        for (Index i = 0; i < count; ++i) {
          body(state, i);
          changed += std::fegetround() != FE_DOWNWARD;
        }
        std::fesetround(FE_TONEAREST);
      },
      nullptr, 3));
  std::atomic<int> nearest{0};
  Call call(context, "attention", 0, 0);
  call.for_each_task(9, [&](Index, Arena&) { nearest += std::fegetround() == FE_TONEAREST; });
  EXPECT_EQ(nearest, 9);
  EXPECT_EQ(changed, 0);
}

// ---- a caller's parallel_for that breaks its contract ---------------------------------------

TEST_F(Tasks, AnExecutorThatRunsNothingIsAnError) {
  Context context(Executor([](void*, Index, Executor::Body, void*) {}, nullptr, 2));
  EXPECT_EQ(message_of<Error>([&] {
              Call call(context, "attention", 0, 0);
              call.for_each_task(5, [](Index, Arena&) {});
            }),
            "attention: executor returned without running the tasks it was given");
}

TEST_F(Tasks, AnExecutorThatCountsFromOneIsAnError) {
  Context context(Executor(
      [](void*, Index count, Executor::Body body, void* state) {
        for (Index i = count; i >= 1; --i) body(state, i);
      },
      nullptr, 3));
  EXPECT_EQ(message_of<Error>([&] {
              Call call(context, "attention", 0, 0);
              call.for_each_task(5, [](Index, Arena&) {});
            }),
            "attention: executor requested body 3 of 3");
}

TEST_F(Tasks, AnExecutorsOwnExceptionIsPassedOn) {
  Context context(Executor(
      [](void*, Index, Executor::Body, void*) { throw std::range_error("no threads today"); },
      nullptr, 2));
  const auto call_it = [&] {
    Call call(context, "attention", 0, 0);
    call.for_each_task(5, [](Index, Arena&) {});
  };
  EXPECT_EQ(message_of<std::range_error>(call_it), "no threads today");
  EXPECT_EQ(message_of<std::range_error>(call_it), "no threads today")
      << "the context must be usable after an error";
}

TEST_F(Tasks, TenThousandTinyCalls) {
  Context context(Executor::threads(4));
  std::atomic<Index> sum{0};
  Index expected = 0;
  for (Index repeat = 0; repeat < 10000; ++repeat) {
    const Index tasks = repeat % 9;
    Call call(context, "attention", 64, 64);
    call.for_each_task(tasks, [&](Index task, Arena& arena) {
      arena.take<Index>(1)[0] = task;
      sum += task + 1;
    });
    expected += tasks * (tasks + 1) / 2;
  }
  EXPECT_EQ(sum, expected);
}

}  // namespace
}  // namespace qkv::test
