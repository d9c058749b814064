// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
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
#include "tests/support/compare.h"

// The error bound of docs/semantics.md: at most twice the error of the naive computation (float32
// sums, one rounding to the input type after scores, weights and out) plus 4 ulp of the largest
// value; three times for gradients. The oracle is this library in float64, which tests/oracle.py
// verifies.
namespace qkv::test {
namespace {

using Values = std::vector<double>;

double round_to(double x, DType dtype) {
  return dtype == DType::kBFloat16  ? static_cast<double>(static_cast<float>(BFloat16(float(x))))
         : dtype == DType::kFloat16 ? static_cast<double>(static_cast<float>(Float16(float(x))))
                                    : static_cast<double>(static_cast<float>(x));
}

struct Problem {
  Index Tq, Tk, D, E;
  double deviation;
  DType dtype;
};

struct Naive {
  Values out, dq, dk, dv;
};

// One head, plain matrices of float32 sums, scaled dot product.
class NaiveHead {
 public:
  NaiveHead(const Problem& p, const Values& q, const Values& k, const Values& v, const Values& g)
      : p_(p), q_(q), k_(k), v_(v), g_(g) {}

  Naive run() {
    const float scale = 1 / std::sqrt(static_cast<float>(p_.D));
    const auto at = [](Index i, Index j, Index n) { return static_cast<std::size_t>(i * n + j); };
    Naive r{Values(at(p_.Tq, 0, p_.E)), Values(q_.size()), Values(k_.size()), Values(v_.size())};
    std::vector<float> dk(k_.size());
    std::vector<float> dv(v_.size());
    for (Index i = 0; i < p_.Tq; ++i) {
      std::vector<double> s(static_cast<std::size_t>(p_.Tk));
      float max = -INFINITY;
      for (Index j = 0; j < p_.Tk; ++j) {
        float sum = 0;
        for (Index c = 0; c < p_.D; ++c) {
          sum += static_cast<float>(q_[at(i, c, p_.D)]) * static_cast<float>(k_[at(j, c, p_.D)]);
        }
        s[at(0, j, 1)] = round(sum * scale);
        max = std::max(max, static_cast<float>(s[at(0, j, 1)]));
      }
      float total = 0;
      for (double& x : s) total += std::exp(static_cast<float>(x) - max);
      Values w;
      for (double& x : s) w.push_back(round(std::exp(static_cast<float>(x) - max) / total));
      float delta = 0;
      for (Index c = 0; c < p_.E; ++c) {
        float sum = 0;
        for (Index j = 0; j < p_.Tk; ++j) {
          sum += static_cast<float>(w[at(0, j, 1)]) * static_cast<float>(v_[at(j, c, p_.E)]);
        }
        r.out[at(i, c, p_.E)] = round(sum);
        delta += sum * static_cast<float>(g_[at(i, c, p_.E)]);
      }
      std::vector<float> dq(static_cast<std::size_t>(p_.D));
      for (Index j = 0; j < p_.Tk; ++j) {
        float dw = 0;
        for (Index c = 0; c < p_.E; ++c) {
          const auto g = static_cast<float>(g_[at(i, c, p_.E)]);
          dw += g * static_cast<float>(v_[at(j, c, p_.E)]);
          dv[at(j, c, p_.E)] += static_cast<float>(w[at(0, j, 1)]) * g;
        }
        const auto ds =
            static_cast<float>(round(static_cast<float>(w[at(0, j, 1)]) * (dw - delta) * scale));
        for (Index c = 0; c < p_.D; ++c) {
          dq[at(0, c, p_.D)] += ds * static_cast<float>(k_[at(j, c, p_.D)]);
          dk[at(j, c, p_.D)] += ds * static_cast<float>(q_[at(i, c, p_.D)]);
        }
      }
      for (Index c = 0; c < p_.D; ++c) r.dq[at(i, c, p_.D)] = round(dq[at(0, c, p_.D)]);
    }
    for (std::size_t n = 0; n < dk.size(); ++n) r.dk[n] = round(dk[n]);
    for (std::size_t n = 0; n < dv.size(); ++n) r.dv[n] = round(dv[n]);
    return r;
  }

 private:
  double round(double x) const { return round_to(x, p_.dtype); }
  const Problem& p_;
  const Values &q_, &k_, &v_, &g_;
};

// The spacing of a dtype's numbers at x.
double ulp(double x, DType dtype) {
  const int bits = dtype == DType::kBFloat16 ? 8 : dtype == DType::kFloat16 ? 11 : 24;
  return std::ldexp(1.0, std::ilogb(std::max(x, 1e-30)) - bits + 1);
}

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

// The root mean square of the error, relative to that of the true values.
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
  for (const Problem& p : {Problem{64, 64, 16, 16, 1, dtype}, Problem{33, 700, 64, 24, 1, dtype},
                           Problem{40, 130, 32, 8, 5, dtype}, Problem{16, 1100, 8, 8, 0.1, dtype},
                           Problem{20, 50, 128, 3, 0.01, dtype}}) {
    SCOPED_TRACE("Tq " + std::to_string(p.Tq) + ", Tk " + std::to_string(p.Tk) + ", deviation " +
                 std::to_string(p.deviation));
    const auto make = [&](const Dims& shape, std::uint64_t seed, double scale) {
      Tensor x = normal(shape, seed, DType::kFloat64);
      for (double& y : x.values<double>()) y = round_to(scale * y, dtype);
      return x;
    };
    const Tensor q = make({p.Tq, p.D}, 1, p.deviation);
    const Tensor k = make({p.Tk, p.D}, 2, p.deviation);
    const Tensor v = make({p.Tk, p.E}, 3, 1);
    const Tensor g = make({p.Tq, p.E}, 4, 1);
    Context context;
    const Pass exact = run(q, k, v, g, context);
    const Pass got =
        run(convert(q, dtype), convert(k, dtype), convert(v, dtype), convert(g, dtype), context);
    const Values values = values_of(v);
    const Naive naive = NaiveHead(p, values_of(q), values_of(k), values, values_of(g)).run();
    const auto check = [&](const char* name, const Tensor& x, const Tensor& want,
                           const Values& other, double factor, double size) {
      const Values truth = values_of(want);
      const double bound = factor * largest_difference(other, truth) + 4 * ulp(size, dtype);
      EXPECT_LE(largest_difference(values_of(x), truth), bound) << name;
    };
    check("out", got.out, exact.out, naive.out, 2, largest(values));
    check("dq", got.dq, exact.dq, naive.dq, 3, largest(values_of(exact.dq)));
    check("dk", got.dk, exact.dk, naive.dk, 3, largest(values_of(exact.dk)));
    check("dv", got.dv, exact.dv, naive.dv, 3, largest(values_of(exact.dv)));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Precision,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

// One call's out on a path.
Tensor forward(const std::string& path, const Tensor& q, const Tensor& k, const Tensor& v) {
  Context context;
  context.force_path(path);
  Tensor out(q.dtype(), {q.size(0), v.size(1)});
  attention({q, k, v}, {}, {.out = out}, context);
  return out;
}

// Several chunks of keys, and ill-conditioned rows: large scores, and one key far above the others.
// A few queries stand for many: rows are independent.
TEST(PathPrecision, IsWithinTheBoundOfTheNaiveComputation) {
  for (const Problem& p : {Problem{24, 1100, 64, 24, 1, DType::kFloat32},
                           Problem{12, 4096, 64, 32, 1, DType::kFloat32},
                           Problem{24, 513, 128, 16, 4, DType::kFloat32},
                           Problem{24, 1030, 17, 33, 30, DType::kFloat32},
                           Problem{8, 2048, 100, 8, 0.01, DType::kFloat32}}) {
    for (const bool dominated : {false, true}) {
      Tensor q = normal({p.Tq, p.D}, 1);
      Tensor k = normal({p.Tk, p.D}, 2);
      const Tensor v = normal({p.Tk, p.E}, 3);
      for (Tensor* x : {&q, &k}) {
        for (float& y : x->values<float>()) y *= static_cast<float>(p.deviation);
      }
      if (dominated) {  // key 700 (or 300) is the sum of the queries, ten times
        const Index j = p.Tk > 700 ? 700 : 300;
        for (Index c = 0; c < p.D; ++c) {
          float sum = 0;
          for (Index i = 0; i < p.Tq; ++i) sum += q.view().at<float>({i, c});
          k.view().at<float>({j, c}) = 10 * sum;
        }
      }
      const auto wide = [](const Tensor& x) { return convert(x, DType::kFloat64); };
      const Values truth =
          values_of(forward(std::string(kReferencePath), wide(q), wide(k), wide(v)));
      const Values values = values_of(v);
      const Values none(static_cast<std::size_t>(p.Tq * p.E));
      const Naive naive = NaiveHead(p, values_of(q), values_of(k), values, none).run();
      const double bound =
          2 * largest_difference(naive.out, truth) + 4 * ulp(largest(values), DType::kFloat32);
      for (const std::string& path : all_paths()) {
        EXPECT_LE(largest_difference(values_of(forward(path, q, k, v)), truth), bound)
            << path << ", Tk " << p.Tk << ", deviation " << p.deviation
            << (dominated ? ", one key dominates" : "");
      }
    }
  }
}

// The relative error of out, dq, dk and dv does not grow with the width: a single sum over 1,024
// channels would have four times the error of one over 64.
TEST(PathPrecision, DoesNotGrowWithTheWidth) {
  const auto forced = [](const std::string& path, const std::vector<Tensor>& x) {
    Context context;
    context.force_path(path);
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

// float32 queries on bfloat16 and float16 keys and values: the same as on their float32 copies.
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
