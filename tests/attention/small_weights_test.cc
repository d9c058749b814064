// SPDX-License-Identifier: Apache-2.0
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/mods.h>

#include "core/order.h"
#include "tests/attention/edge_calls.h"

// Weights below 2^-72 (float64: 2^-968) are 0 (docs/semantics.md, edges), on every path, so that no
// call computes with subnormal numbers because of its scores.
namespace qkv::test {
namespace {

bool is_double(DType dtype) { return dtype == DType::kFloat64; }

// ---- which weights are 0 ----------------------------------------------------------------------

double least_exponent(DType dtype) {
  return is_double(dtype) ? core::kLeastExponent<double> : double{core::kLeastExponent<float>};
}
double next_below(double x, DType dtype) {
  if (is_double(dtype)) return std::nextafter(x, -kInf);
  return std::nextafterf(static_cast<float>(x), -std::numeric_limits<float>::infinity());
}

// Calls test(walk) for dot products of every dtype but float16, which cannot hold the results.
template <class F>
void for_each_wide_walk(const F& test) {
  for_each_walk([&](const Walk& walk) {
    if (walk.kind == ScoreKind::kDot && walk.dtype != DType::kFloat16) test(walk);
  });
}

// A call whose queries and keys are 0, so that scores are those of the bias. Two keys are unmasked:
// the first has score 0 and value 0, the last score x and value `value`. With more than 512 keys
// these two are in different chunks of the softmax.
struct TwoKeys {
  TwoKeys(const Walk& walk, Index rows, Index keys, double x, double value)
      : q(walk.dtype, {rows, 8}),
        k(walk.dtype, {keys, 8}),
        v(walk.dtype, {keys, 1}),
        dout(convert(std::vector<double>(at(rows), 1.0), walk.dtype)),
        bias(numbers(keys, -kInf, 0, x, accumulator_of(walk.dtype))),
        run(walk, Dot{}) {
    copy(reshape(numbers(keys, 0, 0, value, walk.dtype).view(), {keys, 1}), v);
    run.besides = PathRunner::Besides::kEverything;
  }
  PathResults operator()() {
    return run({q, k, v}, {.bias = reshape(bias.view(), {1, bias.size(0)})},
               {.out = reshape(dout.view(), {dout.size(0), 1})});
  }

  static std::size_t at(Index n) { return static_cast<std::size_t>(n); }
  // n numbers: `others`, except for the first and the last.
  static Tensor numbers(Index n, double others, double first, double last, DType dtype) {
    std::vector<double> x(at(n), others);
    x.front() = first;
    x.back() = last;
    return convert(x, dtype);
  }

  Tensor q, k, v, dout, bias;
  PathRunner run;
};

// Returns the last number of a result, which must be finite.
double last_of(const PathResults& results, const char* name) {
  const std::vector<double> values = values_of(results.at(name));
  EXPECT_TRUE(std::isfinite(values.back())) << name;
  return values.back();
}

TEST(SmallWeights, Are0OnlyBelowTheLeastExponent) {
  for_each_wide_walk([](const Walk& walk) {
    const double least = least_exponent(walk.dtype);
    const double value = is_double(walk.dtype) ? 0x1p900 : 0x1p75;
    for (const Index keys : {2, 600}) {
      for (const Index rows : {1, 60}) {
        SCOPED_TRACE(std::to_string(rows) + " queries, " + std::to_string(keys) + " keys");
        const PathResults nonzero = TwoKeys(walk, rows, keys, least, value)();
        const PathResults zero = TwoKeys(walk, rows, keys, next_below(least, walk.dtype), value)();
        const double w = std::exp(least);
        for (const char* name : {"weights", "dropped_weights"}) {
          EXPECT_NEAR(last_of(nonzero, name), w, 1e-4 * w) << name;
        }
        EXPECT_NEAR(last_of(nonzero, "out"), w * value, 1e-2 * w * value);
        EXPECT_NEAR(last_of(nonzero, "column_sums"), double(rows) * w, 1e-4 * double(rows) * w);
        EXPECT_NEAR(last_of(nonzero, "dv"), double(rows) * w, 1e-2 * double(rows) * w);
        EXPECT_NE(last_of(nonzero, "dbias"), 0);
        EXPECT_GT(last_of(nonzero, "entropy"), 0);
        for (const char* name :
             {"weights", "dropped_weights", "out", "column_sums", "dv", "dbias", "entropy"}) {
          EXPECT_EQ(last_of(zero, name), 0) << name;
        }
      }
    }
  });
}

// A sink that low changes only its own gradient: the weight of the one unmasked key is 1 after
// rounding.
TEST(SmallWeights, OfSinksAre0OnlyBelowTheLeastExponent) {
  for_each_wide_walk([](const Walk& walk) {
    const double least = least_exponent(walk.dtype);
    const double w = std::exp(least);
    for (const Index rows : {1, 60}) {
      SCOPED_TRACE(std::to_string(rows) + " queries");
      const Tensor q(walk.dtype, {rows, 8}), k(walk.dtype, {1, 8});
      const Tensor v = convert(std::vector<double>{1}, walk.dtype);
      const Tensor dout = convert(std::vector<double>(TwoKeys::at(rows), 1.0), walk.dtype);
      PathRunner run(walk, Dot{});
      const auto gradient = [&](double sink) {
        const Tensor sinks = convert(std::vector<double>{sink}, accumulator_of(walk.dtype));
        return values_of(run({q, k, reshape(v.view(), {1, 1})}, {.sinks = sinks},
                             {.out = reshape(dout.view(), {rows, 1})})
                             .at("dsinks"))
            .back();
      };
      EXPECT_NEAR(gradient(least), -double(rows) * w, 1e-2 * double(rows) * w);
      EXPECT_EQ(gradient(next_below(least, walk.dtype)), 0);
    }
  });
}

// A weight of 0 times an infinite value is NaN, whatever made the weight 0.
TEST(SmallWeights, DoNotHideAnInfiniteValue) {
  for_each_wide_walk([](const Walk& walk) {
    const double least = least_exponent(walk.dtype);
    for (const Index rows : {1, 60}) {
      const auto out = [&](double x) {
        return values_of(TwoKeys(walk, rows, 2, x, kInf)().at("out")).back();
      };
      EXPECT_EQ(out(least), kInf) << rows;
      EXPECT_TRUE(std::isnan(out(next_below(least, walk.dtype)))) << rows;
    }
  });
}

// ---- no subnormal numbers -------------------------------------------------------------------

struct SmallCase {
  std::string name;
  std::function<void(Options&)> set;
};

// Options with which weights of every size occur among some 300 keys. Slopes, biases, sinks, caps
// and scales grow with `unit`, which is larger for float64, because it has smaller numbers.
std::vector<SmallCase> small_cases(EdgeCall& x, double unit) {
  std::vector<SmallCase> cases;
  const auto add = [&](const std::string& name, std::function<void(Options&)> set) {
    cases.push_back({name, std::move(set)});
  };
  const auto decay = [](float slope) {
    return score_mod([slope](auto s, At at) { return s - slope * abs(at.i - at.j); });
  };
  for (const double slope : {1.0, 0.5, 0.25, 0.125, 0.01}) {
    const ConstView slopes = x.numbers(slope * unit, Dims(2));
    add("alibi " + std::to_string(slope), [=](Options& o) { o.alibi = slopes; });
    if (slope != 0.5) continue;
    add("decay", [mod = decay(static_cast<float>(slope * unit))](Options& o) { o.mods = {mod}; });
    add("alibi and dropout", [=](Options& o) {
      o.alibi = slopes;
      o.dropout = {0.2, 3};
    });
  }
  for (const double bias : {-40, -60, -70, -80, -85, -90, -100}) {
    const ConstView biases = x.array(x.walk.dtype, {x.Tq, x.Tk}, [=](Index, Index j) {
      return j / 64 % 2 == 1 ? bias * unit : 0;
    });
    add("bias " + std::to_string(bias), [=](Options& o) { o.bias = biases; });
  }
  for (const double sink : {-45, -60, -80, -90}) {
    const ConstView sinks = x.numbers(sink * unit, Dims(2));
    add("sink " + std::to_string(sink), [=](Options& o) { o.sinks = sinks; });
  }
  for (const double cap : {30.0, 50.0, 90.0}) {
    add("soft-cap " + std::to_string(cap), [=](Options& o) {
      o.softcap = cap * unit;
      o.scale = 30.0 * unit;
    });
  }
  for (const double scale : {4.0, 20.0}) {
    const ScoreMod square = score_mod([](auto s, At) { return s * s; });
    add("scale " + std::to_string(scale), [=](Options& o) { o.scale = scale * unit; });
    add("s * s " + std::to_string(scale), [=](Options& o) {
      o.mods = {square};
      o.scale = std::sqrt(scale * unit);
    });
  }
  return cases;
}

Tensor scaled(const Tensor& x, double factor) {
  std::vector<double> values = values_of(x);
  for (double& value : values) value *= factor;
  return contiguous(reshape(convert(values, x.dtype()).view(), x.shape()));
}

// Whether f computes an inexact result that is smaller than every normal number.
template <class F>
bool underflows(const F& f) {
  std::feclearexcept(FE_ALL_EXCEPT);
  f();
  return std::fetestexcept(FE_UNDERFLOW) != 0;
}

// No number of the forward or the backward pass is subnormal. dout is about 1e-6, or 1e-3 for
// additive scores, whose gradients have the derivative of tanh as one more factor. If dout were
// 1e-12, a few of a million products would be subnormal.
TEST(SmallWeights, MakeNoSubnormalNumbers) {
  for_each_walk([](const Walk& walk) {
    // Other scores project queries and keys, or normalise them, and continue as dot products.
    if (walk.kind != ScoreKind::kDot && walk.kind != ScoreKind::kAdditive) return;
    if (walk.path.starts_with("reference")) return;
    // Paths without products of BF16 widen 16-bit elements to float32, and results of float16 may
    // be subnormal in any case.
    if (size_of(walk.dtype) < 4 && !has_bfloat16_products(walk.path)) return;
    const double unit = is_double(walk.dtype) ? 9 : 1;
    const SeededScore score(walk.kind, {.H = 2, .Dq = 8, .Dk = 8, .U = 33}, walk.dtype);
    for (const Index queries : {5, 70}) {
      EdgeCall x(walk, queries, 300);
      const DType sums = accumulator_of(walk.dtype);
      const View matrix = x.arrays.emplace_back(sums, Dims{2, 2, queries, 300}).view();
      const View dropped = x.arrays.emplace_back(sums, Dims{2, 2, queries, 300}).view();
      const View rows = x.arrays.emplace_back(sums, Dims{2, 2, queries}).view();
      const View lse = x.arrays.emplace_back(sums, Dims{2, 2, queries}).view();
      const View columns = x.arrays.emplace_back(sums, Dims{2, 2, 300}).view();
      const View out = x.arrays.emplace_back(walk.dtype, x.dout.shape()).view();
      const Tensor dout = scaled(x.dout, walk.kind == ScoreKind::kDot ? 1e-6 : 1e-3);
      Context context = context_on(walk.path);
      for (const SmallCase& one : small_cases(x, unit)) {
        SCOPED_TRACE(one.name + ", " + std::to_string(queries) + " queries");
        Options options{.score = score.score()};
        one.set(options);
        const Outputs outputs{.out = out,
                              .lse = lse,
                              .entropy = rows,
                              .column_sums = columns,
                              .weights = matrix,
                              .dropped_weights = dropped};
        EXPECT_FALSE(underflows([&] { attention(x.inputs(), options, outputs, context); }));
        BackwardCall call{.inputs = x.inputs(), .options = options, .sources = {.out = dout}};
        for (const char* name : BackwardCall::kNames) {
          if (BackwardCall::source_of(name, x.inputs(), options).given()) {
            call.ask(name, Layout::kContiguous);
          }
        }
        Gradients gradients(call);
        EXPECT_FALSE(underflows([&] {
          attention_backward(x.inputs(), options, {out, lse}, call.sources, gradients.views(),
                             context);
        }));
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
