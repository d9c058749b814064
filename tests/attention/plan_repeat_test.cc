// SPDX-License-Identifier: Apache-2.0
// A plan validates arrays again only if they differ from those of its last run. It must notice each
// difference.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"

namespace qkv::test {
namespace {

struct Arrays {
  explicit Arrays(std::uint64_t seed)
      : q(normal({2, 5, 8}, seed)),
        k(normal({2, 9, 8}, seed + 1)),
        v(normal({2, 9, 8}, seed + 2)) {}

  Inputs inputs() const { return {q, k, v}; }
  Outputs all() {
    return {.out = out,
            .lse = lse,
            .row_max = row_max,
            .entropy = entropy,
            .column_sums = sums,
            .value_sums = value_sums,
            .pooled = pooled,
            .top = {3, top, keys},
            .weights = {weights},
            .dropped_weights = {dropped},
            .raw_scores = {raw},
            .capped_scores = {capped},
            .masked_scores = {masked}};
  }
  std::vector<Tensor*> results() {
    return {&out, &lse,  &row_max, &entropy, &sums, &value_sums, &pooled,
            &top, &keys, &weights, &dropped, &raw,  &capped,     &masked};
  }

  // Overwrites all results, so that a run that writes nothing shows.
  void spoil_results() {
    for (Tensor* result : results()) {
      const View x = result->view();
      std::fill_n(static_cast<char*>(x.data()),
                  static_cast<std::size_t>(x.element_count()) * size_of(x.dtype()), 1);
    }
  }

  Tensor q, k, v;
  Tensor out{DType::kFloat32, {2, 5, 8}};
  Tensor lse{DType::kFloat32, {2, 5}};
  Tensor row_max{DType::kFloat32, {2, 5}};
  Tensor sums{DType::kFloat32, {2, 9}};
  Tensor entropy{DType::kFloat32, {2, 5}};
  Tensor value_sums{DType::kFloat32, {2, 9}};
  Tensor pooled{DType::kFloat32, {2, 2, 4}};
  Tensor top{DType::kFloat32, {2, 5, 3}};
  Tensor keys{DType::kInt64, {2, 5, 3}};
  Tensor weights{DType::kFloat32, {2, 5, 9}};
  Tensor dropped{DType::kFloat32, {2, 5, 9}};
  Tensor raw{DType::kFloat32, {2, 5, 9}};
  Tensor capped{DType::kFloat32, {2, 5, 9}};
  Tensor masked{DType::kFloat32, {2, 5, 9}};
};

const Options kOptions{.softcap = 5, .masks = {Causal{}}, .dropout = {0.2, 3}};

// Expects that the results in `ran` are those of attention() on its inputs.
void expect_results_of_a_call(Arrays& ran) {
  Arrays fresh(0);
  attention(ran.inputs(), kOptions, fresh.all());
  const auto got = ran.results();
  const auto want = fresh.results();
  for (std::size_t n = 0; n < got.size(); ++n) {
    EXPECT_TRUE(same_bits(*got[n], *want[n])) << "result " << n;
  }
}

// Expects that the call throws an error about this argument.
template <class Call>
void expect_error(const std::string& argument, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "no error about " << argument;
  } catch (const Error& error) {
    EXPECT_EQ(error.function(), "Plan::run");
    EXPECT_EQ(error.argument(), argument) << error.what();
  }
}

TEST(PlanRepeat, ReadsAndWritesWhereToldEachTime) {
  Arrays a(1), b(11);
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  for (Arrays* x : {&a, &b, &b, &a}) {
    x->spoil_results();
    plan.run(x->inputs(), x->all());
    expect_results_of_a_call(*x);
  }
}

TEST(PlanRepeat, SeesOtherStrides) {
  Arrays a(1);
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  plan.run(a.inputs(), a.all());
  // A view of the tensor with its batch entries in reverse.
  const auto reversed = [](const Tensor& x) {
    const ConstView all = x.view();
    const ConstView last = slice(all, 0, 1, 2);
    Dims strides = all.strides();
    strides[0] = -strides[0];
    return ConstView(last.data(), all.dtype(), all.shape(), strides);
  };
  Tensor out(DType::kFloat32, {2, 5, 8});
  plan.run({a.q, reversed(a.k), a.v}, {.out = a.out});
  attention({a.q, reversed(a.k), a.v}, kOptions, {.out = out});
  EXPECT_TRUE(same_bits(a.out, out));
  plan.run({a.q, a.k, reversed(a.v)}, {.out = a.out});
  attention({a.q, a.k, reversed(a.v)}, kOptions, {.out = out});
  EXPECT_TRUE(same_bits(a.out, out));
}

TEST(PlanRepeat, SeesOtherOutputs) {
  Arrays a(1), b(1);
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  plan.run(a.inputs(), {.out = a.out});
  plan.run(a.inputs(), {.lse = a.lse});
  plan.run(a.inputs(), {.out = a.out, .top = {3, a.top, a.keys}});
  attention(a.inputs(), kOptions, {.out = b.out, .lse = b.lse, .top = {3, b.top, b.keys}});
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
  EXPECT_TRUE(same_bits(a.keys, b.keys));
  expect_error("top.weights", [&] { plan.run(a.inputs(), {.top = {2, a.top, a.keys}}); });
  expect_error("outputs", [&] { plan.run(a.inputs(), {}); });
}

TEST(PlanRepeat, ChecksOtherMemoryForOverlap) {
  Arrays a(1);
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  const View onto_q = a.q.view();
  plan.run(a.inputs(), {.out = a.out});
  expect_error("out", [&] { plan.run(a.inputs(), {.out = onto_q}); });
  expect_error("out", [&] { plan.run(a.inputs(), {.out = onto_q}); });
  a.spoil_results();
  plan.run(a.inputs(), {.out = a.out});  // as before the error
  Tensor out(DType::kFloat32, {2, 5, 8});
  attention(a.inputs(), kOptions, {.out = out});
  EXPECT_TRUE(same_bits(a.out, out));
  plan.run(a.inputs(), {.out = a.out, .lse = a.lse});
  plan.run(a.inputs(), {.out = a.out, .lse = a.lse});
  plan.run(a.inputs(), a.all());
  expect_results_of_a_call(a);
}

TEST(PlanRepeat, ChecksShapesAndDtypesAfterARun) {
  Arrays a(1);
  const Tensor wide(DType::kFloat32, {2, 9, 16});
  const Tensor exact(DType::kFloat64, {2, 9, 8});
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  plan.run(a.inputs(), {.out = a.out});
  expect_error("v", [&] { plan.run({a.q, a.k, wide}, {.out = a.out}); });
  expect_error("v", [&] { plan.run({a.q, a.k, exact}, {.out = a.out}); });
  expect_error("out", [&] { plan.run(a.inputs(), {.out = slice(a.out.view(), 1, 0, 4)}); });
}

TEST(PlanRepeat, ChecksListedRowsEachTime) {
  Arrays a(1);
  std::vector<Index> rows{4, 1, 0, 2, 3};
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  plan.run(a.inputs(), {.weights = {a.weights}});
  Tensor in_order(DType::kFloat32, {2, 5, 9});
  plan.run(a.inputs(), {.weights = {rows, a.weights}});
  plan.run(a.inputs(), {.weights = {in_order}});
  EXPECT_TRUE(same_bits(slice(a.weights.view(), 1, 0, 1), slice(in_order.view(), 1, 4, 5)));
  plan.run(a.inputs(), {.column_sums = {rows, a.sums}});
  rows[2] = 5;
  expect_error("weights.rows", [&] { plan.run(a.inputs(), {.weights = {rows, a.weights}}); });
  expect_error("column_sums.rows", [&] { plan.run(a.inputs(), {.column_sums = {rows, a.sums}}); });
}

TEST(PlanRepeat, BackwardBetweenRunsChangesNothing) {
  Arrays a(1), b(11);
  Context context;
  Plan plan(a.inputs(), kOptions, context);
  plan.run(a.inputs(), a.all());
  Tensor dq(DType::kFloat32, {2, 5, 8});
  plan.backward(b.inputs(), {a.out, a.lse}, {.out = a.q}, {.q = dq});
  plan.run(a.inputs(), a.all());
  expect_results_of_a_call(a);
}

TEST(PlanRepeat, AStoppedRunIsForgotten) {
  Arrays a(1);
  std::atomic<bool> stop{false};
  Context context;
  context.set_stop_flag(&stop);
  Plan plan(a.inputs(), kOptions, context);
  plan.run(a.inputs(), a.all());
  stop = true;
  EXPECT_THROW(plan.run(a.inputs(), a.all()), Cancelled);
  stop = false;
  plan.run(a.inputs(), a.all());
  expect_results_of_a_call(a);
}

}  // namespace
}  // namespace qkv::test
