// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/arrays.h"

// Reproducibility: the order of summation is part of the definition, so a query row's bits do not
// depend on threads, on the rest of the call, on strides or on packing.
namespace qkv::test {
namespace {

// B = 2, H = 4, G = 2, Tq = 37, Tk = 1100 (three chunks of keys, many blocks), every kind of
// option, forward and backward.
struct Everything {
  DType dtype;
  Tensor q, k, v, bias, slopes, sinks, keep, dout, dlse;
  std::vector<Index> lengths{1100, 900};
  Options options;

  explicit Everything(DType d = DType::kFloat32) : dtype(d) {
    q = normal({2, 4, 37, 9}, 1, d);
    k = normal({2, 2, 1100, 9}, 2, d);
    v = normal({2, 2, 1100, 5}, 3, d);
    bias = normal({4, 1, 1100}, 4, d);
    slopes = normal({4}, 5, accumulator_of(d));
    sinks = normal({4}, 6, accumulator_of(d));
    dout = normal({2, 4, 37, 5}, 7, d);
    dlse = normal({2, 4, 37}, 8, accumulator_of(d));
    options = {.softcap = 5,
               .mods = {score_mod([](auto s, At at) { return s - 0.001F * (at.j % 7) * s; })},
               .bias = bias,
               .alibi = slopes,
               .masks = {Window{1090, -1}, KeyLengths{lengths}},
               .sinks = sinks,
               .dropout = {0.1, 7}};
  }
};

struct All {
  Tensor out, lse, row_max, entropy, column_sums, value_sums, pooled, weights, top_weights,
      top_keys;
  Tensor dq, dk, dv, dbias, dalibi, dsinks;

  std::vector<const Tensor*> list() const {
    return {&out,    &lse,     &row_max,     &entropy,  &column_sums, &value_sums,
            &pooled, &weights, &top_weights, &top_keys, &dq,          &dk,
            &dv,     &dbias,   &dalibi,      &dsinks};
  }
};

All run(const Everything& x, Context& context) {
  const DType sums = accumulator_of(x.dtype);
  All r{Tensor(x.dtype, {2, 4, 37, 5}),
        Tensor(sums, {2, 4, 37}),
        Tensor(sums, {2, 4, 37}),
        Tensor(sums, {2, 4, 37}),
        Tensor(sums, {2, 4, 1100}),
        Tensor(sums, {2, 4, 1100}),
        Tensor(sums, {2, 4, 5, 3}),
        Tensor(sums, {2, 4, 3, 1100}),
        Tensor(sums, {2, 4, 37, 3}),
        Tensor(DType::kInt32, {2, 4, 37, 3}),
        Tensor(x.dtype, x.q.shape()),
        Tensor(x.dtype, x.k.shape()),
        Tensor(x.dtype, x.v.shape()),
        Tensor(x.dtype, x.bias.shape()),
        Tensor(sums, {4}),
        Tensor(sums, {4})};
  const std::vector<Index> rows{36, 0, 7};
  attention({x.q, x.k, x.v}, x.options,
            {.out = r.out,
             .lse = r.lse,
             .row_max = r.row_max,
             .entropy = r.entropy,
             .column_sums = r.column_sums,
             .value_sums = r.value_sums,
             .pooled = r.pooled,
             .top = {3, r.top_weights, r.top_keys},
             .weights = {rows, r.weights}},
            context);
  attention_backward(
      {x.q, x.k, x.v}, x.options, {r.out, r.lse}, {.out = x.dout, .lse = x.dlse},
      {.q = r.dq, .k = r.dk, .v = r.dv, .bias = r.dbias, .alibi = r.dalibi, .sinks = r.dsinks},
      context);
  return r;
}

void expect_same(const All& a, const All& b, const char* what) {
  for (std::size_t n = 0; n < a.list().size(); ++n) {
    EXPECT_TRUE(same_bits(*a.list()[n], *b.list()[n])) << what << ", result " << n;
  }
}

// A user's parallel_for that starts a thread for each body, in reverse order.
void backwards_in_threads(void*, Index count, Executor::Body body, void* state) {
  std::vector<std::thread> threads;
  for (Index n = count - 1; n >= 0; --n) threads.emplace_back([=] { body(state, n); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Order, SameBitsForAnyNumberOfThreads) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    if (is_brief() && dtype != DType::kFloat32) continue;
    const Everything x(dtype);
    Context serial;
    const All one = run(x, serial);
    for (int threads : {2, 7}) {
      Context pool{Executor::threads(threads)};
      expect_same(one, run(x, pool), "own pool");
    }
    Context callers{Executor{&backwards_in_threads, nullptr, 3}};
    expect_same(one, run(x, callers), "caller's executor");
    Context again;
    expect_same(one, run(x, again), "the same once more");
  }
}

struct Plain {
  Tensor out, lse;
};

Plain forward(const ConstView& q, const ConstView& k, const ConstView& v, const Options& options) {
  Dims out = q.shape();
  out[out.rank() - 1] = v.size(-1);
  Dims lse;
  for (int axis = 0; axis + 1 < q.rank(); ++axis) lse.push_back(q.shape()[axis]);
  Plain r{Tensor(q.dtype(), out), Tensor(accumulator_of(q.dtype()), lse)};
  attention({q, k, v}, options, {.out = r.out, .lse = r.lse});
  return r;
}

// Decode equals prefill: each query alone, against the cache at that point, gives the bits of the
// single causal call. 530 keys cross a chunk boundary.
TEST(Order, StepByStepDecodingIsOnePrefill) {
  const Tensor q = normal({1, 2, 530, 8}, 11);
  const Tensor k = normal({1, 2, 530, 8}, 12);
  const Tensor v = normal({1, 2, 530, 6}, 13);
  const Plain all = forward(q, k, v, {.masks = {Causal{}}});
  for (Index t : {Index{0}, Index{1}, Index{63}, Index{64}, Index{127}, Index{511}, Index{512},
                  Index{513}, Index{529}}) {
    const Plain step = forward(slice(q.view(), 2, t, t + 1), slice(k.view(), 2, 0, t + 1),
                               slice(v.view(), 2, 0, t + 1), {});
    EXPECT_TRUE(same_bits(slice(all.out.view(), 2, t, t + 1), step.out)) << "step " << t;
    EXPECT_TRUE(same_bits(slice(all.lse.view(), 2, t, t + 1), step.lse)) << "step " << t;
  }
}

TEST(Order, RowsDoNotKnowTheirNeighbours) {
  const Tensor q = normal({3, 4, 20, 8}, 21);
  const Tensor k = normal({3, 2, 600, 8}, 22);
  const Tensor v = normal({3, 2, 600, 6}, 23);
  const Options options{.scale = 0.4, .masks = {Window{-1, 590}}};
  const Plain all = forward(q, k, v, options);
  // One batch entry and one head group alone; Window's diagonal is Tk - Tq in both.
  const auto cut = [](const Tensor& x, Index b, Index h0, Index h1) {
    return slice(slice(x.view(), 0, b, b + 1), 1, h0, h1);
  };
  const Plain part = forward(cut(q, 2, 2, 4), cut(k, 2, 1, 2), cut(v, 2, 1, 2), options);
  EXPECT_TRUE(same_bits(cut(all.out, 2, 2, 4), part.out));
  EXPECT_TRUE(same_bits(cut(all.lse, 2, 2, 4), part.lse));
}

TEST(Order, StridesAndAlignmentDoNotMatter) {
  const Dims q_shape{2, 2, 13, 7};
  const Dims k_shape{2, 2, 70, 7};
  std::vector<Tensor> results;
  for (Layout layout : kOwnLayouts) {
    Random same(99);
    Guarded q(DType::kFloat32, q_shape, layout);
    Guarded k(DType::kFloat32, k_shape, layout);
    Guarded v(DType::kFloat32, k_shape, layout);
    q.fill_normal(same);
    k.fill_normal(same);
    v.fill_normal(same);
    Guarded out(DType::kFloat32, q_shape, layout);
    attention({q, k, v}, {.masks = {Causal{}}}, {.out = out});
    results.push_back(contiguous(out.view()));
    EXPECT_TRUE(same_bits(results.front(), results.back())) << name_of(layout);
  }
}

}  // namespace
}  // namespace qkv::test
