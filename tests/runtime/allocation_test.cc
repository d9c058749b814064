// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <new>

#include <gtest/gtest.h>

#include <qkv/context.h>

#include "runtime/tasks.h"
#include "tests/runtime/executors.h"
#include "tests/support/allocations.h"

namespace qkv::test {
namespace {

using runtime::Arena;
using runtime::Call;
using Allocations = Watched;

void call_once(Context& context) {
  Call call(context, "attention", 4096, 4096);
  const auto shared = call.shared().take<float>(1024);
  call.for_each_task(16, [&](Index task, Arena& arena) {
    arena.take<float>(1024)[0] = 1;
    shared[static_cast<std::size_t>(task)] = 1;
  });
}

TEST_F(Allocations, AreCounted) {
  // The operators are called by name, because a compiler may leave out a pair of new and delete
  // expressions.
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(4)); }), 1);
  EXPECT_EQ(allocations_of([] { ::operator delete[](::operator new[](400)); }), 1);
  constexpr std::align_val_t kWide{128};
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(256, kWide), kWide); }), 1);
}

TEST_F(Allocations, AWarmCallMakesNone) {
  for (const NamedExecutor& each : all_executors()) {
    if (each.starts_threads) continue;
    SCOPED_TRACE(each.name);
    Context context(each.executor);
    call_once(context);
    EXPECT_EQ(allocations_of([&] {
                for (int repeat = 0; repeat < 100; ++repeat) call_once(context);
              }),
              0);
  }
}

TEST_F(Allocations, AReservedCallMakesNone) {
  Context context;
  runtime::Call(context, "Plan", 4096, 4096);
  EXPECT_EQ(allocations_of([&] { call_once(context); }), 0);
}

TEST_F(Allocations, ASerialContextIsOneAndItsScratchTwo) {
  EXPECT_EQ(allocations_of([] { const Context context; }), 1);
  EXPECT_EQ(allocations_of([] {
              Context context;
              call_once(context);
            }),
            3);
  EXPECT_EQ(allocations_of([] {
              Context context;
              const Call call(context, "attention", 0, 0);
            }),
            1);
}

}  // namespace
}  // namespace qkv::test
