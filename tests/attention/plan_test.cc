// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/support/allocations.h"

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
  EXPECT_EQ(plan.path(), "reference");
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
    EXPECT_GT(plan.backward_scratch_bytes(), plan.scratch_bytes());
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

// Scratch is linear in Tq + Tk: doubling both at most doubles it (and a little for padding).
TEST(Plan, ScratchIsLinear) {
  const auto scratch = [](Index T) {
    const Tensor x(DType::kFloat32, {1, 2, T, 16});
    Context context;
    const Plan plan({x, x, x}, {.masks = {Causal{}}}, context);
    return std::pair(plan.scratch_bytes(), plan.backward_scratch_bytes());
  };
  const auto one = scratch(4096);
  const auto two = scratch(8192);
  EXPECT_LT(static_cast<double>(two.first), 2.05 * static_cast<double>(one.first));
  EXPECT_LT(static_cast<double>(two.second), 2.05 * static_cast<double>(one.second));
  EXPECT_LT(two.first, std::size_t{8192} * 8192 * 4 / 8) << "the full matrix has 256 MiB";
}

TEST(Plan, ReadsTheOptionsMemoryAtEveryRun) {
  Problem x;
  Context context;
  Plan plan(x.inputs(), x.options(), context);
  plan.run(x.inputs(), {.out = x.out});
  const Tensor before = contiguous(x.out.view());
  x.lengths = {3, 5};  // the same memory
  plan.run(x.inputs(), {.out = x.out});
  EXPECT_FALSE(same_bits(before, x.out));
  x.lengths[1] = 131;
  EXPECT_THROW(plan.run(x.inputs(), {.out = x.out}), Error);
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

TEST(Context, AnUnknownPathIsAnErrorThatListsThePaths) {
  Problem x;
  Context context;
  context.force_path("warp_speed");
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
