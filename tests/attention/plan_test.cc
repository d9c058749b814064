// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/target.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/support/allocations.h"
#include "tests/support/errors.h"
#include "tests/support/paths.h"

namespace qkv::test {
namespace {

struct Problem {
  Tensor q = normal({2, 4, 70, 8}, 1);
  Tensor k = normal({2, 2, 130, 8}, 2);
  Tensor v = normal({2, 2, 130, 8}, 3);
  Tensor bias = normal({70, 130}, 4);
  Tensor dout = normal({2, 4, 70, 8}, 5);
  std::vector<Index> lengths{100, 130};
  Tensor out{DType::kFloat32, {2, 4, 70, 8}};
  Tensor lse{DType::kFloat32, {2, 4, 70}};
  Tensor dq{DType::kFloat32, {2, 4, 70, 8}};
  Tensor dk{DType::kFloat32, {2, 2, 130, 8}};
  Tensor dv{DType::kFloat32, {2, 2, 130, 8}};
  Tensor dbias{DType::kFloat32, {70, 130}};

  Options options() const {
    return {.softcap = 10,
            .mods = {score_mod([](auto s, At at) { return s * (1 + 0.01F * (at.i % 3)); })},
            .bias = bias,
            .masks = {Causal{}, KeyLengths{lengths},
                      mask_mod([](At at) { return (at.i + at.j) % 5 != 0; })},
            .dropout = {0.1, 9}};
  }
  Inputs inputs() const { return {q, k, v}; }
};

TEST(Plan, GivesTheBitsOfTheFunctions) {
  Problem a;
  attention(a.inputs(), a.options(), {.out = a.out, .lse = a.lse});
  attention_backward(a.inputs(), a.options(), {a.out, a.lse}, {.out = a.dout},
                     {.q = a.dq, .k = a.dk, .v = a.dv, .bias = a.dbias});
  Problem b;
  Context context{Executor::threads(2)};
  Plan plan(b.inputs(), b.options(), context);
  const bool reference = cpu_target() == "reference";
  EXPECT_EQ(plan.path(), reference ? "reference" : "dot/" + std::string(cpu_target()));
  EXPECT_EQ(plan.backward_path(), plan.path());
  plan.run(b.inputs(), {.out = b.out, .lse = b.lse});
  plan.backward(b.inputs(), {b.out, b.lse}, {.out = b.dout},
                {.q = b.dq, .k = b.dk, .v = b.dv, .bias = b.dbias});
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  EXPECT_TRUE(same_bits(a.dq, b.dq));
  EXPECT_TRUE(same_bits(a.dk, b.dk));
  EXPECT_TRUE(same_bits(a.dv, b.dv));
  EXPECT_TRUE(same_bits(a.dbias, b.dbias));
}

TEST(Plan, RunsWithoutAllocating) {
  for (int threads : {1, 2}) {
    Problem x;
    Context context{Executor::threads(threads)};
    Plan plan(x.inputs(), x.options(), context);
    EXPECT_GT(plan.scratch_bytes(), 0U);
    EXPECT_GT(plan.backward_scratch_bytes(), 0U);
    const std::size_t held = context.scratch_bytes();
    const Inputs inputs = x.inputs();
    const auto run = [&] {
      plan.run(inputs, {.out = x.out, .lse = x.lse});
      plan.backward(inputs, {x.out, x.lse}, {.out = x.dout},
                    {.q = x.dq, .k = x.dk, .v = x.dv, .bias = x.dbias});
    };
    if (threads == 1) {
      EXPECT_EQ(qkv::test::allocations_of(run), 0);
    }
    run();  // starts the threads of the pool
    EXPECT_EQ(qkv::test::allocations_of(run), 0) << threads << " threads";
    EXPECT_EQ(context.scratch_bytes(), held);
  }
}

TEST(Plan, ReadsTheOptionsMemoryAtEveryRun) {
  Problem x;
  Context context;
  Plan plan(x.inputs(), x.options(), context);
  plan.run(x.inputs(), {.out = x.out});
  const Tensor before = contiguous(x.out.view());
  x.lengths = {3, 5};  // keeps the memory that the options refer to
  plan.run(x.inputs(), {.out = x.out});
  EXPECT_FALSE(same_bits(before, x.out));
  x.lengths[1] = 131;
  EXPECT_THROW(plan.run(x.inputs(), {.out = x.out}), Error);
}

TEST(Plan, MovedFromRefusesCalls) {
  Problem x;
  Context context;
  Plan plan(x.inputs(), x.options(), context);
  Plan other = std::move(plan);
  // NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  const auto run = [&] { plan.run(x.inputs(), {.out = x.out, .lse = x.lse}); };
  const auto backward = [&] {
    plan.backward(x.inputs(), {x.out, x.lse}, {.out = x.dout}, {.q = x.dq});
  };
  EXPECT_EQ(error_of(run), "Plan::run: plan must hold a problem, got a moved-from plan");
  EXPECT_EQ(error_of(backward), "Plan::backward: plan must hold a problem, got a moved-from plan");
  EXPECT_EQ(plan.path(), "");
  EXPECT_EQ(plan.backward_path(), "");
  EXPECT_EQ(plan.scratch_bytes() + plan.backward_scratch_bytes(), 0U);
  plan = std::move(other);
  EXPECT_EQ(error_of(run), "");
  // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
}

// A second call on a running plan is rejected before it touches memory that the first one reads.
TEST(Plan, IsNotDisturbedByACallThatComesWhileItRuns) {
  Problem x, other;
  for (int threads : {1, 2}) {
    Context context{Executor::threads(threads)};
    Plan* running = nullptr;
    std::atomic<int> refused{0};
    const auto disturb = [&](const auto& call) {
      try {
        call();
        ADD_FAILURE() << "a second call ran";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("context is in use by another call"),
                  std::string::npos)
            << error.what();
        ++refused;
      }
    };
    other.q = normal({2, 4, 70, 8}, 6);  // other queries: a call that ran would change results
    const Inputs shorter{other.q, slice(other.k, 2, 0, 60), slice(other.v, 2, 0, 60)};
    Options options = x.options();
    options.masks.emplace_back(mask_mod([&](At at) {
      if (running != nullptr && at.i == 3 && at.j == 3) {
        disturb([&] { running->run(other.inputs(), {.out = other.out}); });
        disturb([&] { running->run(shorter, {.out = other.out}); });
        disturb([&] {
          running->backward(other.inputs(), {other.out, other.lse}, {.out = other.dout},
                            {.q = other.dq});
        });
      }
      return true;
    }));
    Plan plan(x.inputs(), options, context);
    const auto outs = [&] {
      plan.run(x.inputs(), {.out = x.out, .lse = x.lse});
      plan.backward(x.inputs(), {x.out, x.lse}, {.out = x.dout}, {.q = x.dq, .k = x.dk});
      return std::array{contiguous(x.out.view()), contiguous(x.dq.view()), contiguous(x.dk.view())};
    };
    const std::array<Tensor, 3> alone = outs();
    running = &plan;
    const std::array<Tensor, 3> disturbed = outs();
    EXPECT_GE(refused, 2 * 3);  // passes that evaluate the mask, with three calls each
    for (std::size_t n = 0; n < alone.size(); ++n) {
      EXPECT_TRUE(same_bits(alone[n], disturbed[n])) << threads << " threads, result " << n;
    }
  }
}

TEST(Context, AStopFlagCancels) {
  Problem x;
  std::atomic<bool> stop{true};
  for (int threads : {1, 2}) {
    Context context{Executor::threads(threads)};
    context.set_stop_flag(&stop);
    stop = true;
    EXPECT_THROW(attention(x.inputs(), {}, {.out = x.out}, context), Cancelled);
    EXPECT_THROW(
        attention_backward(x.inputs(), {}, {x.out, x.lse}, {.out = x.dout}, {.q = x.dq}, context),
        Cancelled);
    stop = false;
    attention(x.inputs(), {}, {.out = x.out}, context);  // and the context is free again
  }
}

// The mask sets the stop flag at query 1 and key 1 of the first head, in pass `chosen` over all
// pairs. The reference's backward pass makes two: pass 1 by queries, pass 2 by keys. A task of the
// reference then ends after its row, a task of another path after its block, so that the mask is
// evaluated for few more pairs.
TEST(Context, AStopFlagEndsALongTask) {
  Problem x;
  std::atomic<bool> stop{false};
  std::atomic<int> calls_after_stop{0};
  int pass = 0, pass_to_stop = 0;
  const MaskMod stopping = mask_mod([&](At at) {
    if (at.b == 0 && at.h == 0 && at.i == 1 && at.j == 1 && ++pass == pass_to_stop) stop = true;
    if (stop) ++calls_after_stop;
    return true;
  });
  Context context = context_on("reference");
  context.set_stop_flag(&stop);
  const auto calls_after_stop_in = [&](int chosen, const auto& call) {
    stop = false;
    calls_after_stop = pass = 0;
    pass_to_stop = chosen;
    EXPECT_THROW(call(), Cancelled);
    return calls_after_stop.load();
  };
  const Options options{.masks = {stopping}};
  const auto forward = [&] { attention(x.inputs(), options, {.out = x.out}, context); };
  const auto backward = [&] {
    attention_backward(x.inputs(), options, {x.out, x.lse}, {.out = x.dout}, {.k = x.dk}, context);
  };
  EXPECT_LT(calls_after_stop_in(1, forward), 130);   // of the 32 x 130 pairs of a task
  EXPECT_LT(calls_after_stop_in(1, backward), 130);  // of 32 x 130
  EXPECT_LT(calls_after_stop_in(2, backward), 130);  // of 2 heads x 70 queries x 130 keys
  context.force_path("");
  x.k = normal({2, 2, 2000, 8}, 2);
  x.v = normal({2, 2, 2000, 8}, 3);
  EXPECT_LT(calls_after_stop_in(1, forward), 70 * 2 * 512);  // of 70 queries x 2 heads x 2,000 keys
}

TEST(Context, AnUnknownPathIsAnErrorThatListsThePaths) {
  Problem x;
  Context context = context_on("warp_speed");
  try {
    attention(x.inputs(), {}, {.out = x.out}, context);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("reference"), std::string::npos) << error.what();
  }
  context.force_path("reference");
  attention(x.inputs(), {}, {.out = x.out}, context);
}

}  // namespace
}  // namespace qkv::test
