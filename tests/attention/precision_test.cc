// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/target.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/attention/plain_head.h"
#include "tests/support/compare.h"

// The error bound of docs/semantics.md: at most twice the error of the naive computation (float32
// sums, one rounding to the input type after scores, weights and out) plus 4 ulp of the largest
// value; three times for gradients. The oracle is this library in float64, which tests/oracle.py
// verifies.
namespace qkv::test {
namespace {

using Values = std::vector<double>;

struct Pass {
  Tensor out, lse, dq, dk, dv;
};

Pass run(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, Context& context) {
  const DType d = q.dtype();
  Pass r{Tensor(d, g.shape()), Tensor(accumulator_of(d), Dims(q.size(0))), Tensor(d, q.shape()),
         Tensor(d, k.shape()), Tensor(d, v.shape())};
  attention({q, k, v}, {}, {.out = r.out, .lse = r.lse}, context);
  attention_backward({q, k, v}, {}, {r.out, r.lse}, {.out = g}, {.q = r.dq, .k = r.dk, .v = r.dv},
                     context);
  return r;
}

// The root mean square of the errors, divided by the root mean square of the true values.
double relative_error(const Values& got, const Values& truth) {
  double wrong = 0;
  double right = 0;
  for (std::size_t n = 0; n < truth.size(); ++n) {
    wrong += (got[n] - truth[n]) * (got[n] - truth[n]);
    right += truth[n] * truth[n];
  }
  return std::sqrt(wrong / right);
}

class Precision : public testing::TestWithParam<DType> {};

TEST_P(Precision, IsWithinTheBoundOfTheNaiveComputation) {
  const DType dtype = GetParam();
  for (Head& x : std::array{random_head(64, 64, 16, 16, 1), random_head(33, 700, 64, 24, 1),
                            random_head(40, 130, 32, 8, 5), random_head(16, 1100, 8, 8, 0.1F),
                            random_head(20, 50, 128, 3, 0.01F)}) {
    SCOPED_TRACE("Tq " + std::to_string(x.Tq) + ", Tk " + std::to_string(x.Tk));
    for (Tensor* t : {&x.q, &x.k, &x.v, &x.dout}) {  // numbers that all runs can hold
      *t = convert(convert(*t, dtype), DType::kFloat32);
    }
    Context context;
    const auto run_as = [&](DType d) {
      return run(convert(x.q, d), convert(x.k, d), convert(x.v, d), convert(x.dout, d), context);
    };
    const Pass exact = run_as(DType::kFloat64);
    const Pass got = run_as(dtype);
    const PlainResults naive = plain_results<float>(x, dtype);
    const auto check = [&](const char* name, const Tensor& result, const Tensor& want,
                           const Values& naive_result, double factor, double size) {
      const Values truth = values_of(want);
      const double bound = factor * largest_difference(naive_result, truth) + 4 * ulp(size, dtype);
      EXPECT_LE(largest_difference(values_of(result), truth), bound) << name;
    };
    check("out", got.out, exact.out, naive.out, 2, largest(values_of(x.v)));
    check("dq", got.dq, exact.dq, naive.dq, 3, largest(values_of(exact.dq)));
    check("dk", got.dk, exact.dk, naive.dk, 3, largest(values_of(exact.dk)));
    check("dv", got.dv, exact.dv, naive.dv, 3, largest(values_of(exact.dv)));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Precision,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

// Computes out of one call on a path.
Tensor forward(const std::string& path, const Tensor& q, const Tensor& k, const Tensor& v) {
  Context context = context_on(path);
  Tensor out(q.dtype(), {q.size(0), v.size(1)});
  attention({q, k, v}, {}, {.out = out}, context);
  return out;
}

// Covers several chunks of keys, and ill-conditioned rows: large scores, and one key far above the
// others. A few queries stand for many, since rows are independent.
TEST(PathPrecision, IsWithinTheBoundOfTheNaiveComputation) {
  for (const bool dominated : {false, true}) {
    for (Head& x : std::array{random_head(24, 1100, 64, 24, 1), random_head(12, 4096, 64, 32, 1),
                              random_head(24, 513, 128, 16, 4), random_head(24, 1030, 17, 33, 30),
                              random_head(8, 2048, 100, 8, 0.01F)}) {
      if (dominated) dominate(x, x.Tk > 700 ? 700 : 300);
      const auto wide = [](const Tensor& t) { return convert(t, DType::kFloat64); };
      const Values truth =
          values_of(forward(std::string(kReferencePath), wide(x.q), wide(x.k), wide(x.v)));
      const double bound = 2 * largest_difference(plain_results<float>(x).out, truth) +
                           4 * ulp(largest(values_of(x.v)));
      for (const std::string& path : all_paths()) {
        EXPECT_LE(largest_difference(values_of(forward(path, x.q, x.k, x.v)), truth), bound)
            << path << ", Tk " << x.Tk << ", D " << x.D << (dominated ? ", one key dominates" : "");
      }
    }
  }
}

// The relative error of out, dq, dk and dv does not grow with the width: a single sum over 1,024
// channels would have four times the error of one over 64.
TEST(PathPrecision, DoesNotGrowWithTheWidth) {
  const auto forced = [](const std::string& path, const std::vector<Tensor>& x) {
    Context context = context_on(path);
    return run(x[0], x[1], x[2], x[3], context);
  };
  std::map<std::string, std::vector<double>> errors;  // by path
  for (const Index width : {64, 1024}) {
    std::vector<Tensor> x;
    for (const Index rows : {12, 150, 150, 12}) x.push_back(normal({rows, width}, x.size()));
    std::vector<Tensor> wide;
    for (const Tensor& y : x) wide.push_back(convert(y, DType::kFloat64));
    const Pass exact = forced(std::string(kReferencePath), wide);
    for (const std::string& path : all_paths()) {
      const Pass got = forced(path, x);
      for (const auto of : {&Pass::out, &Pass::dq, &Pass::dk, &Pass::dv}) {
        errors[path].push_back(relative_error(values_of(got.*of), values_of(exact.*of)));
      }
    }
  }
  for (const auto& [path, found] : errors) {
    for (std::size_t n = 0; n < 4; ++n) {
      EXPECT_LE(found[n + 4], 1.5 * found[n]) << path << ", result " << n;
    }
  }
}

// float32 queries with bfloat16 or float16 keys and values give the results of float32 copies of
// these.
TEST(MixedPrecision, WideQueriesOnNarrowKeys) {
  for (DType narrow : {DType::kBFloat16, DType::kFloat16}) {
    const Tensor q = normal({4, 6}, 1);
    const Tensor k = normal({9, 6}, 2, narrow);
    const Tensor v = normal({9, 3}, 3, narrow);
    Tensor a(DType::kFloat32, {4, 3});
    Tensor b(DType::kFloat32, {4, 3});
    attention({q, k, v}, {}, {.out = a});
    attention({q, convert(k, DType::kFloat32), convert(v, DType::kFloat32)}, {}, {.out = b});
    EXPECT_TRUE(same_bits(a, b));
  }
}

}  // namespace
}  // namespace qkv::test
