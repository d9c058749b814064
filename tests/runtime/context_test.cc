// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <latch>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/context.h>
#include <qkv/error.h>

#include "runtime/tasks.h"
#include "tests/runtime/executors.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

using runtime::Arena;
using runtime::Call;
using Contexts = Watched;

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0; }

// Returns the text of the error that a call named "attention" on this context throws, or "".
std::string refusal(Context& context) {
  return message_of([&] { const Call call(context, "attention", 0, 0); });
}

TEST_F(Contexts, KeepWhatTheyWereTold) {
  Context context(Executor::threads(3));
  EXPECT_EQ(context.executor().concurrency(), 3);
  EXPECT_EQ(Context().executor().concurrency(), 1);

  EXPECT_EQ(context.stop_flag(), nullptr);
  const std::atomic<bool> stop{false};
  context.set_stop_flag(&stop);
  EXPECT_EQ(context.stop_flag(), &stop);

  EXPECT_EQ(context.forced_path(), "");
  context.force_path("reference");
  EXPECT_EQ(context.forced_path(), "reference");
}

TEST_F(Contexts, OneCallAtATime) {
  Context context;
  {
    const Call call(context, "attention", 0, 0);
    EXPECT_EQ(refusal(context), "attention: context is in use by another call");
    EXPECT_THROW(runtime::Call(context, "Plan", 64, 64), Error);
  }
  EXPECT_EQ(refusal(context), "");
}

TEST_F(Contexts, RefuseTheirOwnTasks) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    Call call(context, "outer", 0, 0);
    EXPECT_THROW(call.for_each_task(5, [&](Index, Arena&) { Call(context, "inner", 0, 0); }),
                 Error);
  }
}

TEST_F(Contexts, OnlyOneOfManyThreadsGetsIt) {
  // `total` and `calls` are not atomic, and the atomic variables are relaxed, so the context alone
  // synchronises the threads.
  Context context;
  int total = 0;
  std::vector<int> calls(4, 0);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  std::atomic<bool> refused{false};
  std::latch start(4);
  std::vector<std::thread> threads;
  threads.reserve(calls.size());
  for (int& mine : calls) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int repeat = 0; repeat < 500 || !met.load(kRelaxed); ++repeat) {
        try {
          const Call call(context, "attention", 0, 0);
          if (inside.fetch_add(1, kRelaxed) > 0) met.store(true, kRelaxed);
          const int before = total;
          std::this_thread::yield();
          total = before + 1;
          ++mine;
          inside.fetch_sub(1, kRelaxed);
        } catch (const Error&) {
          met.store(true, kRelaxed);
          refused.store(true, kRelaxed);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(refused);
  EXPECT_EQ(total, std::accumulate(calls.begin(), calls.end(), 0));
}

TEST_F(Contexts, GoFromThreadToThread) {
  // `turn` is relaxed, so it does not order the threads' accesses to `number`. The calls on the
  // context must do so, or the thread sanitizer reports a race.
  Context context;
  int number = 0;
  std::atomic<int> turn{0};
  const auto take_turns = [&](int parity) {
    for (int mine = parity; mine < 1000; mine += 2) {
      while (turn.load(std::memory_order_relaxed) != mine) std::this_thread::yield();
      {
        const Call call(context, "attention", 0, 0);
        ++number;
      }
      turn.store(mine + 1, std::memory_order_relaxed);
    }
  };
  std::thread even(take_turns, 0);
  std::thread odd(take_turns, 1);
  even.join();
  odd.join();
  EXPECT_EQ(number, 1000);
}

TEST_F(Contexts, TasksCallOnOtherContextsOfTheSameExecutor) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context outer_context(each.executor);
    std::atomic<int> leaves{0};
    Call outer(outer_context, "outer", 0, 64);
    outer.for_each_task(6, [&](Index, Arena&) {
      Context inner_context(each.executor);
      Call inner(inner_context, "inner", 64, 64);
      inner.for_each_task(6, [&](Index, Arena&) { ++leaves; });
    });
    EXPECT_EQ(leaves, 36);
  }
}

TEST_F(Contexts, OfOneExecutorOnManyThreads) {
  const Executor executor = Executor::threads(3);
  std::atomic<Index> sum{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Context context(executor);
      for (int repeat = 0; repeat < 200; ++repeat) {
        Call call(context, "attention", 0, 64);
        call.for_each_task(20, [&](Index task, Arena& arena) {
          // The arena's memory must belong to this worker alone, or the thread sanitizer reports a
          // race.
          arena.take<Index>(1)[0] = task;
          sum += task;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 4 * 200 * (19 * 20 / 2));
}

TEST_F(Contexts, MoveWithWhatTheyHold) {
  Context first(Executor::threads(2));
  runtime::Call(first, "Plan", 128, 64);
  Context second(std::move(first));
  EXPECT_EQ(second.scratch_bytes(), 128u + 2 * 64);
  Context third;
  third = std::move(second);
  EXPECT_EQ(third.scratch_bytes(), 128u + 2 * 64);
  first = Context();
  EXPECT_EQ(first.scratch_bytes(), 0u);
  EXPECT_EQ(refusal(first), "");
  EXPECT_EQ(refusal(third), "");
}

TEST_F(Contexts, ScratchIsCountedKeptAndGivenBack) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    const auto workers = static_cast<std::size_t>(each.executor.concurrency());
    Context context(each.executor);
    EXPECT_EQ(context.scratch_bytes(), 0u);
    runtime::Call(context, "Plan", 1000, 100);  // 16 and 2 cache lines
    EXPECT_EQ(context.scratch_bytes(), 1024 + workers * 128);
    runtime::Call(context, "Plan", 10, 128);
    EXPECT_EQ(context.scratch_bytes(), 1024 + workers * 128);
    runtime::Call(context, "Plan", 0, 640);
    EXPECT_EQ(context.scratch_bytes(), 1024 + workers * 640);
    context.release_scratch();
    EXPECT_EQ(context.scratch_bytes(), 0u);
    runtime::Call(context, "Plan", 1, 0);
    EXPECT_EQ(context.scratch_bytes(), 64u);
  }
}

TEST_F(Contexts, ScratchThatGrowsBitByBitRarelyMoves) {
  Context context;
  int growths = 0;
  for (std::size_t bytes = 64; bytes <= 640'000; bytes += 64) {
    const std::size_t before = context.scratch_bytes();
    runtime::Call(context, "Plan", bytes, 0);
    growths += context.scratch_bytes() != before;
    ASSERT_GE(context.scratch_bytes(), bytes);
    ASSERT_LE(context.scratch_bytes(), bytes + bytes / 4 + 64);
  }
  EXPECT_LE(growths, 60);  // log(10000) / log(1.25) = 41, and the steps of small sizes
}

TEST_F(Contexts, ScratchStaysDuringACall) {
  Context context;
  Call call(context, "attention", 256, 64);
  const auto numbers = call.shared().take<int>(64);
  std::ranges::fill(numbers, 5);
  context.release_scratch();
  EXPECT_EQ(context.scratch_bytes(), 320u);
  EXPECT_EQ(std::ranges::count(numbers, 5), 64);
}

TEST_F(Contexts, LendMemoryBetweenCalls) {
  Context context;
  const std::byte* first = nullptr;
  {
    const runtime::BorrowedMemory borrowed(context, 1000);
    first = borrowed.memory();
    ASSERT_NE(first, nullptr);
    runtime::Call(context, "Plan", 2048, 64);  // this call gets other memory
    const runtime::BorrowedMemory other(context, 64);
    EXPECT_NE(other.memory(), first);
  }
  EXPECT_EQ(context.scratch_bytes(), 1024u + 2048 + 64);
  {
    const runtime::BorrowedMemory again(context, 500);
    EXPECT_EQ(again.memory(), first);
    EXPECT_EQ(context.scratch_bytes(), 2048u + 64);
  }
  {
    const Call call(context, "attention", 64, 64);
    const runtime::BorrowedMemory during(context, 500);
    EXPECT_NE(during.memory(), first);
  }
  context.release_scratch();
  EXPECT_EQ(context.scratch_bytes(), 0u);
  EXPECT_THROW(runtime::BorrowedMemory(context, std::numeric_limits<std::size_t>::max() - 4096),
               std::bad_alloc);
  EXPECT_EQ(context.scratch_bytes(), 0u);
}

TEST_F(Contexts, StayUsableWhenMemoryRunsOut) {
  Context context(Executor::threads(2));
  runtime::Call(context, "Plan", 64, 64);
  EXPECT_THROW(runtime::Call(context, "Plan", 64, std::numeric_limits<std::size_t>::max()),
               std::bad_alloc);
  EXPECT_EQ(context.scratch_bytes(), 64u);  // all workers' blocks are released
  EXPECT_THROW(runtime::Call(context, "Plan", 64, std::size_t{1} << 50), std::bad_alloc);
  EXPECT_EQ(context.scratch_bytes(), 64u);
  {
    // A smaller call than those that failed has memory on every worker.
    Call call(context, "Plan", 64, 64);
    call.for_each_task(50, [](Index, Arena& arena) { arena.take<std::byte>(64); });
  }
  EXPECT_EQ(context.scratch_bytes(), 64u + 2 * 64);
  runtime::Call(context, "Plan", 128, 128);
  EXPECT_EQ(context.scratch_bytes(), 128u + 2 * 128);
  EXPECT_EQ(refusal(context), "");
}

TEST_F(Contexts, ScratchIsAlignedOnEveryWorker) {
  for (const NamedExecutor& each : all_executors()) {
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    Call call(context, "attention", 200, 200);
    EXPECT_TRUE(aligned(call.shared().take<char>(1).data()));
    EXPECT_TRUE(aligned(call.shared().take<double>(1).data()));
    std::atomic<int> wrong{0};
    call.for_each_task(50, [&](Index, Arena& arena) {
      wrong += arena.used() != 0;
      wrong += !aligned(arena.take<char>(1).data());
      wrong += !aligned(arena.take<double>(8).data());
      wrong += arena.used() != 128;
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Arenas, HandOutWhatTheyHave) {
  alignas(64) std::byte memory[256];
  Arena arena(memory, sizeof memory);
  const auto first = arena.take<float>(17);  // 68 bytes
  EXPECT_EQ(first.size(), 17u);
  EXPECT_EQ(static_cast<void*>(first.data()), memory);
  EXPECT_EQ(arena.used(), 128u);
  EXPECT_EQ(static_cast<void*>(arena.take<char>(1).data()), memory + 128);
  EXPECT_EQ(arena.take<double>(0).size(), 0u);
  EXPECT_EQ(arena.used(), 192u);
  EXPECT_THROW(arena.take<char>(65), std::logic_error);
  EXPECT_EQ(arena.used(), 192u);
  EXPECT_EQ(arena.take<char>(64).size(), 64u);
  EXPECT_THROW(arena.take<char>(1), std::logic_error);
  arena.reset();
  EXPECT_EQ(static_cast<void*>(arena.take<char>(1).data()), memory);
  EXPECT_THROW(Arena().take<char>(1), std::logic_error);
  EXPECT_EQ(Arena().take<char>(0).size(), 0u);
}

TEST(Arenas, CostsAreWholeLinesAndNeverWrapAround) {
  EXPECT_EQ(Arena::cost<float>(0), 0u);
  EXPECT_EQ(Arena::cost<float>(1), 64u);
  EXPECT_EQ(Arena::cost<float>(16), 64u);
  EXPECT_EQ(Arena::cost<float>(17), 128u);
  EXPECT_EQ(Arena::cost<double>(1000), 8000u);
  constexpr Index kMost = std::numeric_limits<Index>::max();
  EXPECT_THROW(Arena::cost<double>(kMost), std::bad_array_new_length);
  EXPECT_THROW(Arena::cost<double>(kMost / 4 + 1), std::bad_array_new_length);  // wraps to 0
  EXPECT_THROW(Arena::cost<char>(-1), std::bad_array_new_length);
  EXPECT_THROW(Arena::cost<char>(-100), std::bad_array_new_length);
  EXPECT_THROW(Arena::cost<double>(-1), std::bad_array_new_length);
  EXPECT_THROW(core::padded_bytes(std::numeric_limits<std::size_t>::max() - 62),
               std::bad_array_new_length);
  Arena arena;
  EXPECT_THROW(arena.take<double>(kMost / 4 + 1), std::bad_array_new_length);
}

}  // namespace
}  // namespace qkv::test
