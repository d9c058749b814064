// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/qkv.h>

#include "tests/attention/bits.h"

// Calls as a user types them: designated initialisers, variants, vectors, lambdas. That they
// compile without a warning is half of the test.
namespace qkv::test {
namespace {

void my_parallel_for(void* pool, Index count, Executor::Body body, void* state) {
  ++*static_cast<int*>(pool);
  for (Index n = 0; n < count; ++n) body(state, n);
}

TEST(Interface, ReadsAsProse) {
  const Index B = 2, H = 4, G = 2, Tq = 5, Tk = 7, D = 6, E = 3, U = 4, R = 2;
  const Tensor q_data = normal({B, H, Tq, D}, 1), k_data = normal({B, G, Tk, D}, 2);
  const Tensor v_data = normal({B, G, Tk, E}, 3), dout = normal({B, H, Tq, E}, 4);
  std::vector<float> out_data(static_cast<std::size_t>(B * H * Tq * E)), lse_data(40);
  const float* qp = q_data.values<float>().data();
  const float* kp = k_data.values<float>().data();
  const float* vp = v_data.values<float>().data();

  const ConstView q{qp, {B, H, Tq, D}}, k{kp, {B, G, Tk, D}}, v{vp, {B, G, Tk, E}};
  const View out{out_data.data(), {B, H, Tq, E}}, lse{lse_data.data(), {B, H, Tq}};
  const std::vector<int> lengths{7, 3};

  attention({q, k, v},
            {.softcap = 30, .masks = {Causal{}, KeyLengths{lengths}}, .dropout = {0.1, 7}},
            {.out = out, .lse = lse});

  // Results for inspection are written to the caller's buffers. These need no Tq x Tk elements.
  Tensor mass(DType::kFloat32, {B, H, Tk}), weight(DType::kFloat32, {B, H, Tq, 8});
  Tensor key(DType::kInt64, {B, H, Tq, 8}), w(DType::kFloat32, {B, H, R, Tk});
  const std::vector<Index> rows{4, 0};
  attention(
      {q, k, v}, {.masks = {Causal{}}},
      {.out = out, .lse = lse, .column_sums = mass, .top = {8, weight, key}, .weights = {rows, w}});

  // Gradients of outputs go in, gradients of inputs come out; a score's gradient names the buffers
  // of its parameters.
  const Tensor Wq = normal({U, D}, 5), Wk = normal({U, D}, 6), u = normal({U}, 7);
  Tensor dq(DType::kFloat32, {B, H, Tq, D}), dk(DType::kFloat32, {B, G, Tk, D});
  Tensor dv(DType::kFloat32, {B, G, Tk, E}), dWq(DType::kFloat32, {U, D});
  Tensor dWk(DType::kFloat32, {U, D}), du(DType::kFloat32, {U});
  const Options bahdanau{.score = Additive{Wq, Wk, u}};
  attention({q, k, v}, bahdanau, {.out = out, .lse = lse});
  attention_backward({q, k, v}, bahdanau, {out, lse}, {.out = dout},
                     {.q = dq, .k = dk, .v = dv, .score = AdditiveGradient{dWq, dWk, du}});
  const std::vector<float> by_function = out_data;

  // Score and mask functions of the user.
  const std::vector<float> slope{1, 2, 3, 4};
  const std::vector<int> doc{0, 0, 0, 1, 1, 1, 1};
  auto decay = score_mod([=](auto s, At at) {
    return s - slope[static_cast<std::size_t>(at.h)] * static_cast<float>(abs(at.i - at.j));
  });
  auto same = mask_mod([=](At at) {
    return doc[static_cast<std::size_t>(at.i)] == doc[static_cast<std::size_t>(at.j)];
  });
  attention({q, k, v}, {.mods = {decay}, .masks = {Causal{}, same}}, {.out = out});
  EXPECT_NE(out_data, by_function);

  // A plan is bound once, may run often, and runs on the user's threads.
  int my_pool = 0;
  Context context{Executor{my_parallel_for, &my_pool, 8}};
  Plan plan({q, k, v}, bahdanau, context);
  EXPECT_TRUE(plan.path() == "reference" || plan.path().starts_with("additive/")) << plan.path();
  EXPECT_GT(plan.scratch_bytes(), 0U);
  plan.run({q, k, v}, {.out = out});
  EXPECT_EQ(out_data, by_function);
  EXPECT_GT(my_pool, 0) << "the caller's parallel_for was never asked";
}

TEST(Interface, ErrorsNameFunctionArgumentRuleAndWhatCame) {
  const Tensor q(DType::kFloat32, {2, 8, 5, 32}), k(DType::kFloat32, {2, 8, 7, 64});
  Tensor out(DType::kFloat32, {2, 8, 5, 64});
  try {
    attention({q, k, k}, {}, {.out = out});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "attention: k has D = 64 but q has D = 32 (q [2,8,5,32], k [2,8,7,64])");
    EXPECT_EQ(error.function(), "attention");
    EXPECT_EQ(error.argument(), "k");
    EXPECT_EQ(error.kind(), ErrorKind::kValue);
  }
}

TEST(Interface, SaysTheShapesOfResults) {
  const Tensor q(DType::kFloat32, {5, 2, 4, 3, 8}), k(DType::kFloat32, {2, 7, 8});
  const Tensor v(DType::kFloat32, {2, 7, 6});
  const ResultShapes mixed = result_shapes({q, k, v});
  EXPECT_EQ(mixed.out, Dims(5, 2, 4, 3, 6));
  EXPECT_EQ(mixed.rows, Dims(5, 2, 4, 3));
  EXPECT_EQ(mixed.keys, Dims(5, 2, 4, 7));
  EXPECT_EQ(mixed.matrix, Dims(5, 2, 4, 3, 7));

  const Tensor pq(DType::kFloat32, {9, 4, 8}), pk(DType::kFloat32, {7, 2, 8});
  const std::vector<int> starts_q{0, 4, 9}, starts_k{0, 7, 7};
  const ResultShapes packed = result_shapes({pq, pk, pk, starts_q, starts_k});
  EXPECT_EQ(packed.out, Dims(9, 4, 8));
  EXPECT_EQ(packed.rows, Dims(4, 9));
  EXPECT_EQ(packed.keys, Dims(4, 7));
  EXPECT_EQ(packed.matrix.rank(), 0);

  EXPECT_EQ(result_shapes({k, k, {}}).out.rank(), 0);
  EXPECT_THROW(result_shapes({q, k, q}), Error);
}

}  // namespace
}  // namespace qkv::test
