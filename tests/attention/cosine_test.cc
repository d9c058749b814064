// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"

// Cosine scores for extreme norms, on every path.
namespace qkv::test {
namespace {

constexpr Index kQueries = 37, kKeys = 150, kWidth = 70;

struct CosineRun {
  Tensor out, lse, scores, dq, dk;

  CosineRun(const std::string& path, const Tensor& q, const Tensor& k, const Tensor& v,
            const Tensor& dout)
      : out(v.dtype(), {2, kQueries, 5}),
        lse(v.dtype(), {2, kQueries}),
        scores(v.dtype(), {2, kQueries, kKeys}),
        dq(q.dtype(), q.shape()),
        dk(k.dtype(), k.shape()) {
    Context context = context_on(path);
    const Options options{.score = Cosine{}, .scale = 3};
    const Inputs inputs{q, k, v};
    attention(inputs, options, {.out = out, .lse = lse, .raw_scores = {scores}}, context);
    attention_backward(inputs, options, {out, lse}, {.out = dout}, {.q = dq, .k = dk}, context);
  }
};

Tensor times_power(const Tensor& x, int power) {
  Tensor y(x.dtype(), x.shape());
  for (Index n = 0; n < x.element_count(); ++n) {
    const double value = core::load<double>(x.dtype(), x.view().data(), n);
    core::store(x.dtype(), y.view().data(), n, std::ldexp(value, power));
  }
  return y;
}

double value_of(const Tensor& x, Index n) {
  return core::load<double>(x.dtype(), x.view().data(), n);
}

template <class F>
void for_each_path(const F& test) {
  for (const std::string& path : all_backward_paths(ScoreKind::kCosine)) {
    for (const DType d : {DType::kFloat32, DType::kFloat64}) {
      SCOPED_TRACE(path + ", " + std::string(name_of(d)));
      test(path, normal({2, kQueries, kWidth}, 1, d), normal({2, kKeys, kWidth}, 2, d),
           normal({2, kKeys, 5}, 3, d), normal({2, kQueries, 5}, 4, d));
    }
  }
}

// Rows are scaled by a power of two so that their squares overflow or underflow. Scores stay
// bit-identical, and gradients are scaled exactly by the inverse power.
TEST(Cosine, LengthsNeitherOverflowNorVanish) {
  for_each_path([](const std::string& path, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& dout) {
    const bool wide = q.dtype() == DType::kFloat64;
    const CosineRun plain(path, q, k, v, dout);
    for (const int power : {wide ? 900 : 100, wide ? -900 : -100}) {
      const CosineRun far(path, times_power(q, power), times_power(k, -power), v, dout);
      EXPECT_TRUE(same_bits(plain.scores, far.scores)) << power;
      EXPECT_TRUE(same_bits(plain.out, far.out)) << power;
      EXPECT_TRUE(same_bits(plain.dq, times_power(far.dq, power))) << power;
      EXPECT_TRUE(same_bits(plain.dk, times_power(far.dk, -power))) << power;
    }
  });
}

TEST(Cosine, ARowOfZerosScoresZeroAndGetsNoGradient) {
  for_each_path([](const std::string& path, const Tensor& drawn_q, const Tensor& drawn_k,
                   const Tensor& v, const Tensor& dout) {
    Tensor q = contiguous(drawn_q.view());
    Tensor k = contiguous(drawn_k.view());
    const Index query = 5 * kWidth, key = 66 * kWidth;  // elements where rows of entry 0 begin
    for (Index c = 0; c < kWidth; ++c) {
      core::store(q.dtype(), q.view().data(), query + c, 0.0);
      core::store(k.dtype(), k.view().data(), key + c, 0.0);
    }
    const CosineRun run(path, q, k, v, dout);
    for (Index j = 0; j < kKeys; ++j) EXPECT_EQ(value_of(run.scores, 5 * kKeys + j), 0) << j;
    for (Index i = 0; i < kQueries; ++i) EXPECT_EQ(value_of(run.scores, i * kKeys + 66), 0) << i;
    for (Index c = 0; c < kWidth; ++c) {
      EXPECT_EQ(value_of(run.dq, query + c), 0) << c;
      EXPECT_EQ(value_of(run.dk, key + c), 0) << c;
    }
    EXPECT_NE(value_of(run.dq, query + kWidth), 0);
    EXPECT_NE(value_of(run.dk, key + kWidth), 0);
  });
}

// dq_i . q_i = 0: scaling a query does not change its scores.
TEST(Cosine, GradientsAreAtRightAnglesToRows) {
  for_each_path([](const std::string& path, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& dout) {
    const CosineRun run(path, q, k, v, dout);
    const double eps = q.dtype() == DType::kFloat64 ? 1e-15 : 1e-6;
    for (Index i = 0; i < 2 * kQueries; ++i) {
      double sum = 0, size = 0;
      for (Index n = i * kWidth; n < (i + 1) * kWidth; ++n) {
        sum += value_of(q, n) * value_of(run.dq, n);
        size += std::fabs(value_of(q, n) * value_of(run.dq, n));
      }
      EXPECT_LT(std::fabs(sum), 100 * eps * size) << i;
    }
  });
}

}  // namespace
}  // namespace qkv::test
