// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/gradients.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Targets = std::vector<std::int64_t>;

// Returns N targets in 0..V-1, which cover all classes if N is large enough.
Targets some_targets(Index N, Index V) {
  Targets targets;
  for (Index n = 0; n < N; ++n) targets.push_back((n * 7 + n / 3) % V);
  return targets;
}

// The results of the formula in float64; `e` is the smoothing, and every row has the same dloss.
struct Plain {
  std::vector<double> losses, log_probabilities, dlogits;
};
Plain plain(const std::vector<double>& x, const Targets& targets, double e, double dloss) {
  Plain result;
  if (targets.empty()) return result;
  const std::size_t V = x.size() / targets.size();
  for (std::size_t n = 0; n < targets.size(); ++n) {
    const std::span<const double> row(x.data() + n * V, V);
    const auto t = static_cast<std::size_t>(targets[n]);
    const double max = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const double logit : row) sum += std::exp(logit - max);
    const double lse = max + std::log(sum);
    double mean = 0;
    for (const double logit : row) mean += logit / static_cast<double>(V);
    result.log_probabilities.push_back(row[t] - lse);
    result.losses.push_back((1 - e) * (lse - row[t]) + (e > 0 ? e * (lse - mean) : 0));
    for (std::size_t v = 0; v < V; ++v) {
      const double label = (v == t ? 1 - e : 0) + e / static_cast<double>(V);
      result.dlogits.push_back(dloss * (std::exp(row[v] - lse) - label));
    }
  }
  return result;
}

// One forward and backward pass, with the same dloss for every row.
struct Pass {
  Tensor losses, log_probabilities, dlogits;

  Pass(const CrossEntropy& layer, const ConstView& logits, const Targets& targets, double dloss = 1,
       int threads = 1) {
    Context context(Executor::threads(threads));
    const DType dtype = logits.dtype();
    losses = Tensor(dtype, {logits.size(0)});
    log_probabilities = Tensor(dtype, {logits.size(0)});
    dlogits = random_tensor(dtype, logits.shape(), 9);
    CrossEntropy::Saved saved;
    layer.forward(logits, targets, saved, {losses, log_probabilities}, context);
    const Tensor one = convert(ConstView(&dloss, {}), dtype);
    layer.backward(saved, broadcast_to(one, {logits.size(0)}), dlogits, Write::kOverwrite, context);
  }
};

TEST(CrossEntropy, IsItsFormulaForAnySizeLayoutAndSmoothing) {
  Random random(1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Bound bound = dtype == DType::kFloat64 ? Bound{1e-14, 1e-14} : Bound{1e-6, 2e-6};
    for (const Dims& shape : {Dims{5, 1}, Dims{0, 3}, Dims{9, 13}, Dims{3, 64}, Dims{4, 100}}) {
      const Targets targets = some_targets(shape[0], shape[1]);
      for (const Layout layout : kLayouts) {
        for (const double e : {0.0, 0.1}) {
          const std::string replay = to_string(shape) + " " + std::string(name_of(layout)) +
                                     " smoothing " + std::to_string(e);
          Guarded x(dtype, shape, layout);
          x.fill_normal(random, 3);
          const Pass got(CrossEntropy(e), x, targets, 0.7);
          const Plain want = plain(values_of(x), targets, e, 0.7);
          EXPECT_TRUE(compare("losses", got.losses, want.losses, bound, replay));
          EXPECT_TRUE(compare("log_probabilities", got.log_probabilities, want.log_probabilities,
                              bound, replay));
          EXPECT_TRUE(compare("dlogits", got.dlogits, want.dlogits, bound, replay));
        }
      }
    }
  }
}

TEST(CrossEntropy, WritesResultsOfAnyLayout) {
  Random random(2);
  const Tensor x = random_tensor(DType::kFloat32, {9, 13}, 1);
  const std::vector<std::int32_t> targets{0, 5, 12, 7, 7, 1, 2, 3, 4};
  const Pass want(CrossEntropy(0.1), x, Targets(targets.begin(), targets.end()));
  for (const Layout layout : kOwnLayouts) {
    Guarded losses(DType::kFloat32, {9}, layout);
    Guarded log_probabilities(DType::kFloat32, {9}, layout);
    Guarded dlogits(DType::kFloat32, {9, 13}, layout);
    Guarded dlosses(DType::kFloat32, {9}, layout);
    dlosses.fill(std::vector<double>(9, 1));
    CrossEntropy::Saved saved;
    CrossEntropy(0.1).forward(x, targets, saved, {losses, log_probabilities});
    CrossEntropy(0.1).backward(saved, dlosses, dlogits);
    EXPECT_TRUE(compare("losses", losses.view(), values_of(want.losses), {}, "layout"));
    EXPECT_TRUE(compare("log_probabilities", log_probabilities.view(),
                        values_of(want.log_probabilities), {}, "layout"));
    EXPECT_TRUE(compare("dlogits", dlogits.view(), values_of(want.dlogits), {}, "layout"));
    EXPECT_TRUE(losses.intact() && log_probabilities.intact() && dlogits.intact());
    // Accumulating onto the gradient gives twice the gradient.
    CrossEntropy(0.1).backward(saved, dlosses, dlogits, Write::kAccumulate);
    std::vector<double> twice;
    for (const double value : values_of(want.dlogits)) twice.push_back(2 * value);
    EXPECT_TRUE(compare("dlogits", dlogits.view(), twice, {}, "added"));
  }
}

// In float32, ten thousand classes and logits far from 0 add little error, because there are 64
// partial sums, of exponentials relative to the maximum.
TEST(CrossEntropy, IsAccurateForManyClasses) {
  for (const double offset : {0.0, 1000.0, -1000.0}) {
    Tensor x = random_tensor(DType::kFloat32, {3, 10000}, 3);
    for (float& logit : x.values<float>()) logit += static_cast<float>(offset);
    const Targets targets{0, 9999, 4321};
    const std::string replay = "offset " + std::to_string(offset);
    const Pass got(CrossEntropy(0.9), x, targets);
    const Plain want = plain(values_of(x), targets, 0.9, 1);
    EXPECT_TRUE(compare("losses", got.losses, want.losses, {2.5e-7, 0}, replay));
    EXPECT_TRUE(compare("log_probabilities", got.log_probabilities, want.log_probabilities,
                        {2.5e-7, 0}, replay));
    // exp(x - max) also has the rounding error of its argument, whose size is at most 8 here.
    EXPECT_TRUE(compare("dlogits", got.dlogits, want.dlogits, {2e-6, 1e-10}, replay));
  }
}

TEST(CrossEntropy, GradientIsThatOfCentralDifferences) {
  Tensor x = random_tensor(DType::kFloat64, {5, 7}, 4);
  const Targets targets{3, 0, -100, 6, 3};
  const Tensor dlosses = random_tensor(DType::kFloat64, {5}, 5);
  for (const double e : {0.0, 0.2}) {
    const CrossEntropy layer(e, -100);
    CrossEntropy::Saved saved;
    Tensor losses(DType::kFloat64, {5});
    auto loss = [&] {
      layer.forward(x, targets, saved, {.losses = losses});
      return dot(losses, dlosses);
    };
    loss();
    Tensor dlogits(DType::kFloat64, {5, 7});
    layer.backward(saved, dlosses, dlogits);
    expect_gradient({"logits", x, dlogits}, loss, "smoothing " + std::to_string(e));
  }
}

// The loss is -(1 - e) w_t log p_t - (e/V) sum_v w_v log p_v.
TEST(CrossEntropy, WeighsItsClasses) {
  for (const Index V : {2, 70}) {
    std::vector<double> weights;
    for (Index v = 0; v < V; ++v) weights.push_back(v % 5 == 4 ? 0 : 0.25 + 0.5 * (v % 3));
    for (const double e : {0.0, 0.3}) {
      const CrossEntropy layer(e, std::nullopt, weights);
      Tensor logits = random_tensor(DType::kFloat64, {4, V}, 3);
      const Targets targets = some_targets(4, V);
      const auto x = logits.values<double>();
      const auto loss_of = [&] {
        double total = 0;
        for (std::size_t n = 0; n < 4; ++n) {
          const double* const row = &x[n * weights.size()];
          double sum = 0;
          for (std::size_t v = 0; v < weights.size(); ++v) sum += std::exp(row[v]);
          for (std::size_t v = 0; v < weights.size(); ++v) {
            const double own = static_cast<std::int64_t>(v) == targets[n] ? 1 - e : 0;
            const double share = own + e / static_cast<double>(V);
            total -= share * weights[v] * (row[v] - std::log(sum));
          }
        }
        return total;
      };
      const Pass pass(layer, logits, targets);
      double total = 0;
      for (const double loss : pass.losses.values<double>()) total += loss;
      EXPECT_NEAR(total, loss_of(), 1e-12 * V) << V << ", " << e;
      expect_gradient({"logits", logits, pass.dlogits}, loss_of, std::to_string(e));
    }
  }
}

TEST(CrossEntropy, AClassWithoutWeightAddsNothing) {
  const std::vector<double> weights{1, 0, 2};
  for (const double e : {0.0, 0.1}) {
    const CrossEntropy layer(e, std::nullopt, weights);
    Tensor logits = random_tensor(DType::kFloat64, {2, 3}, 3);
    logits.values<double>()[1] = -kInfinity;  // a class of probability 0
    const Pass pass(layer, logits, {1, 0});
    for (const double loss : pass.losses.values<double>()) EXPECT_TRUE(std::isfinite(loss));
    for (const double gradient : pass.dlogits.values<double>())
      EXPECT_TRUE(std::isfinite(gradient));
    EXPECT_EQ(pass.losses.values<double>()[0] == 0, e == 0);
  }
}

TEST(CrossEntropy, WeightsThatDoNotFitAreErrors) {
  const std::vector<double> odd{1, kNan};
  EXPECT_EQ(error_of([&] { CrossEntropy(0, std::nullopt, odd); }),
            "CrossEntropy: class_weights must be finite, got nan");
  const std::vector<std::int64_t> whole{1, 2};
  EXPECT_EQ(error_of([&] { CrossEntropy(0, std::nullopt, whole); }),
            "CrossEntropy: class_weights must be real numbers [V], V >= 1, got int64 [2]");
  const std::vector<double> two{1, 2};
  const Tensor logits = random_tensor(DType::kFloat64, {1, 3}, 3);
  EXPECT_EQ(error_of([&] { Pass(CrossEntropy(0, std::nullopt, two), logits, {0}); }),
            "CrossEntropy::forward: logits must have V = 2, one for each class weight, got float64 "
            "[1,3]");
  const std::vector<double> huge{1, 1e39, 1};
  EXPECT_EQ(
      error_of([&] {
        Pass(CrossEntropy(0, std::nullopt, huge), random_tensor(DType::kFloat32, {1, 3}, 3), {0});
      }),
      "CrossEntropy::forward: logits are float32, which cannot hold the class weight 1e+39");
  const std::vector<double> large{1e308, 1e308, 1};
  const Tensor wide = random_tensor(DType::kFloat64, {1, 3}, 3);
  EXPECT_EQ(error_of([&] { Pass(CrossEntropy(0.1, std::nullopt, large), wide, {0}); }),
            "CrossEntropy::forward: logits are float64, which cannot hold the sum of the class "
            "weights, inf");
  EXPECT_EQ(error_of([&] { Pass(CrossEntropy(0, std::nullopt, large), wide, {0}); }), "");
}

// The sum of the weights may be infinite in the type of the logits.
TEST(CrossEntropy, LargeWeightsHaveFiniteGradients) {
  const std::vector<double> large{3e38, 3e38, 1};
  const CrossEntropy loss(0, std::nullopt, large);
  const Tensor logits = random_tensor(DType::kFloat32, {1, 3}, 3);
  const std::vector<std::int64_t> targets{2};
  Tensor losses(DType::kFloat32, {1}), dlogits(DType::kFloat32, {1, 3});
  CrossEntropy::Saved saved;
  loss.forward(logits, targets, saved, {.losses = losses});
  losses.values<float>()[0] = 1;
  loss.backward(saved, losses, dlogits);
  float sum = 0;
  for (const float x : dlogits.values<float>()) sum += x;
  EXPECT_NEAR(sum, 0, 1e-6);
}

TEST(CrossEntropy, IgnoredRowsAreZeroWhateverTheyHold) {
  Tensor x = random_tensor(DType::kFloat32, {4, 5}, 6);
  for (std::size_t v = 5; v < 10; ++v) x.values<float>()[v] = static_cast<float>(kNan);
  for (const Index ignore : {Index{-100}, Index{2}}) {  // a label that is not a class, or is one
    const Targets targets{0, ignore, 4, ignore};
    const CrossEntropy layer(0.1, ignore);
    const Pass got(layer, x, targets);
    for (const std::size_t n : {1U, 3U}) {
      EXPECT_EQ(got.losses.values<float>()[n], 0);
      EXPECT_EQ(got.log_probabilities.values<float>()[n], 0);
      for (std::size_t v = 0; v < 5; ++v) EXPECT_EQ(got.dlogits.values<float>()[n * 5 + v], 0);
    }
    EXPECT_GT(got.losses.values<float>()[0], 0);
    // With Write::kAccumulate the existing gradients of ignored rows stay.
    CrossEntropy::Saved saved;
    Tensor losses(DType::kFloat32, {4});
    layer.forward(x, targets, saved, {.losses = losses});
    Tensor sums = random_tensor(DType::kFloat32, {4, 5}, 7);
    const float before = sums.values<float>()[17];
    layer.backward(saved, losses, sums, Write::kAccumulate);
    EXPECT_EQ(sums.values<float>()[17], before);
  }
}

TEST(CrossEntropy, GradientsMayReplaceTheLogits) {
  for (const bool strided : {false, true}) {
    Tensor memory = random_tensor(DType::kFloat32, {9, 9}, 8);
    const View x = strided ? transpose(memory, 0, 1) : memory.view();
    const Targets targets = some_targets(9, 9);
    const Pass want(CrossEntropy(0.1), x, targets);
    CrossEntropy::Saved saved;
    Tensor losses(DType::kFloat32, {9});
    CrossEntropy(0.1).forward(x, targets, saved, {.losses = losses});
    const float one = 1;
    CrossEntropy(0.1).backward(saved, ConstView(&one, {9}, {0}), x);
    EXPECT_TRUE(compare("dlogits", x, values_of(want.dlogits), {}, "in place"));
  }
}

// Forward and backward in one call are bit-identical to two calls, also for rows that are ignored
// or hold NaN.
TEST(CrossEntropy, ForwardAndBackwardHasTheBitsOfTwoCalls) {
  const std::vector<double> some(130, 0.75);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const Index V : {1, 63, 64, 65, 130}) {
      for (const double e : {0.0, 0.1}) {
        for (const bool strided : {false, true}) {
          for (const bool weighted : {false, true}) {
            const ConstView weights = weighted ? ConstView(some.data(), {V}) : ConstView();
            const CrossEntropy layer(e, 2, weights);
            Tensor memory = random_tensor(dtype, strided ? Dims{V, 40} : Dims{40, V}, 8);
            core::store(dtype, memory.view().data(), 17 * (strided ? 1 : V), kNan);
            const View x = strided ? transpose(memory, 0, 1) : memory.view();
            Targets targets(40, 0);
            for (Index n = 0; n < 40; ++n)
              targets[static_cast<std::size_t>(n)] = n % 3 == 0 ? 2 : n % V;
            Tensor want = contiguous(x);
            Tensor want_losses(dtype, {40}), want_log(dtype, {40}), losses(dtype, {40}),
                log(dtype, {40}), ones(dtype, {40});
            for (Index n = 0; n < 40; ++n) core::store(dtype, ones.view().data(), n, 1.0);
            CrossEntropy::Saved saved;
            layer.forward(want, targets, saved, {want_losses, want_log});
            layer.backward(saved, ones, want);
            Context context(Executor::threads(strided ? 2 : 1));
            layer.forward_and_backward(x, targets, {losses, log}, context);
            const std::string replay = std::to_string(V) + (strided ? " strided" : "");
            EXPECT_EQ(bytes_of(losses), bytes_of(want_losses)) << replay;
            EXPECT_EQ(bytes_of(log), bytes_of(want_log)) << replay;
            EXPECT_TRUE(compare("dlogits", x, values_of(want), {}, replay));
          }
        }
      }
    }
  }
  Tensor x = random_tensor(DType::kFloat32, {2, 3}, 1);
  EXPECT_EQ(error_of([&] {
              CrossEntropy().forward_and_backward(x, Targets{0, 1}, {});
            }),
            "CrossEntropy::forward_and_backward: outputs must name losses or log_probabilities");
}

// A row with NaN or +inf gives NaN; the results of other rows keep their bits.
TEST(CrossEntropy, NanAndInfinityInARowMakeItNanAndNoOther) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor good = random_tensor(dtype, {3, 70}, 9);
    const Targets targets{1, 2, 3};
    for (const double e : {0.0, 0.1}) {
      const Pass want(CrossEntropy(e), good, targets);
      for (const double value : {kNan, kInfinity}) {
        for (const Index v : {0, 2, 69}) {  // 2 is the row's target
          Tensor x = contiguous(good);
          core::store(dtype, x.view().data(), 70 + v, value);
          const Pass got(CrossEntropy(e), x, targets);
          const auto expect = [&](const std::string& name, const Tensor& a, const Tensor& b) {
            std::vector<double> numbers = values_of(b);
            const std::size_t width = numbers.size() / 3;
            std::fill_n(numbers.begin() + static_cast<Index>(width), width, kNan);
            EXPECT_TRUE(compare(name, a, numbers, {}, std::to_string(value)));
          };
          expect("losses", got.losses, want.losses);
          expect("log_probabilities", got.log_probabilities, want.log_probabilities);
          expect("dlogits", got.dlogits, want.dlogits);
        }
      }
    }
  }
}

TEST(CrossEntropy, MinusInfinityIsAProbabilityOfZero) {
  // In row 0 the logit -inf is not the target's, in row 1 it is, in row 2 all logits are -inf.
  const std::vector<double> x{0, -kInfinity, 0,          0,         -kInfinity,
                              0, -kInfinity, -kInfinity, -kInfinity};
  const ConstView logits(x.data(), {3, 3});
  const auto expect = [](const ConstView& got, const std::vector<double>& want) {
    EXPECT_TRUE(compare("got", got, want, {1e-15, 1e-15}, ""));
  };
  const Pass sharp(CrossEntropy(), logits, {0, 1, 2});
  const double half = std::log(0.5);
  expect(sharp.log_probabilities, {half, -kInfinity, kNan});
  expect(sharp.losses, {-half, kInfinity, kNan});
  expect(sharp.dlogits, {-0.5, 0, 0.5, 0.5, -1, 0.5, kNan, kNan, kNan});
  // With smoothing the loss includes the class of probability 0.
  const Pass smooth(CrossEntropy(0.3), logits, {0, 1, 2});
  expect(smooth.losses, {kInfinity, kInfinity, kNan});
  expect(slice(smooth.dlogits.view(), 0, 0, 1), {-0.3, -0.1, 0.4});
}

TEST(CrossEntropy, BitsOfARowDoNotDependOnThreadsOrOtherRows) {
  for (const Index V : {13, 3000}) {
    const Tensor x = random_tensor(DType::kFloat32, {40, V}, 10);
    const Targets targets = some_targets(40, V);
    const CrossEntropy layer(0.1);
    const Pass want(layer, x, targets);
    for (const int threads : {2, 7}) {
      const Pass got(layer, x, targets, 1, threads);
      EXPECT_EQ(bytes_of(got.losses), bytes_of(want.losses)) << threads;
      EXPECT_EQ(bytes_of(got.dlogits), bytes_of(want.dlogits)) << threads;
    }
    for (Index n = 0; n < 40; n += 13) {
      const auto row = static_cast<std::size_t>(n);
      const Pass alone(layer, slice(ConstView(x), 0, n, n + 1), {targets[row]});
      EXPECT_EQ(alone.losses.values<float>()[0], want.losses.values<float>()[row]);
      EXPECT_EQ(bytes_of(alone.dlogits),
                bytes_of(contiguous(slice(want.dlogits.view(), 0, n, n + 1))));
    }
  }
}

TEST(CrossEntropy, ErrorsNameTheArgument) {
  EXPECT_EQ(error_of([] { CrossEntropy(1); }),
            "CrossEntropy: label_smoothing must be in [0,1), got 1");
  EXPECT_EQ(error_of([] { CrossEntropy(-0.5); }),
            "CrossEntropy: label_smoothing must be in [0,1), got -0.5");
  EXPECT_NE(error_of([] { CrossEntropy{kNan}; }), "");

  const CrossEntropy layer(0.1, -100);
  Tensor x = random_tensor(DType::kFloat32, {3, 4}, 1);
  Tensor losses = random_tensor(DType::kFloat32, {3}, 2);
  const std::vector<std::uint8_t> before = bytes_of(losses);
  const std::vector<std::uint8_t> logits_before = bytes_of(x);
  const Targets good{0, 3, -100};
  CrossEntropy::Saved saved;
  const auto forward = [&](const ConstView& logits, const ConstView& targets,
                           const CrossEntropyOutputs& outputs) {
    Tensor other(DType::kFloat32, {3});
    layer.forward(x, good, saved, {.losses = other});
    const std::string message = error_of([&] { layer.forward(logits, targets, saved, outputs); });
    EXPECT_EQ(bytes_of(losses), before);
    EXPECT_EQ(bytes_of(x), logits_before);
    // Results of an earlier pass must not be taken for those of the failed one.
    Tensor dx(DType::kFloat32, {3, 4});
    EXPECT_EQ(error_of([&] { layer.backward(saved, other, dx); }),
              "CrossEntropy::backward: saved must come from a forward pass");
    return message;
  };
  const std::string prefix = "CrossEntropy::forward: ";
  const CrossEntropyOutputs to{.losses = losses};
  EXPECT_EQ(forward({}, good, to), prefix + "logits must be given");
  EXPECT_EQ(forward(good, good, to),
            "TypeError: " + prefix + "logits must be float32 or float64, got int64 [3]");
  EXPECT_EQ(forward(reshape(x, {1, 3, 4}), good, to),
            prefix + "logits must have the shape [N,V] with V >= 1, got float32 [1,3,4]");
  EXPECT_EQ(forward(slice(x, 1, 0, 0), good, to),
            prefix + "logits must have the shape [N,V] with V >= 1, got float32 [3,0]");
  EXPECT_EQ(forward(x, {}, to), prefix + "targets must be given");
  EXPECT_EQ(forward(x, random_tensor(DType::kFloat32, {3}, 3), to),
            "TypeError: " + prefix + "targets must be int32 or int64, got float32 [3]");
  EXPECT_EQ(forward(x, Targets{1, 2}, to),
            prefix + "targets must have the shape [3], one for each row of logits, got int64 [2]");
  EXPECT_EQ(forward(x, Targets{1, 2, 4}, to),
            prefix + "targets must lie in 0..3 or be -100, got 4 at [2]");
  EXPECT_EQ(forward(x, Targets{1, -1, 3}, to),
            prefix + "targets must lie in 0..3 or be -100, got -1 at [1]");
  EXPECT_EQ(forward(x, good, {}), prefix + "outputs must name losses or log_probabilities");
  EXPECT_EQ(forward(x, good, {.losses = x}),
            prefix + "losses must have the shape [3], got float32 [3,4]");
  EXPECT_EQ(forward(x, good, {.losses = reshape(slice(x, 1, 0, 1), {3})}),
            prefix + "losses must not overlap logits");
  EXPECT_EQ(forward(x, good, {losses, losses}),
            prefix + "log_probabilities must not overlap losses");

  layer.forward(x, good, saved, to);
  Tensor dx(DType::kFloat32, {3, 4});
  const auto backward = [&](const ConstView& dlosses, const View& dlogits, Write write) {
    return error_of([&] { layer.backward(saved, dlosses, dlogits, write); });
  };
  const std::string back = "CrossEntropy::backward: ";
  EXPECT_EQ(backward({}, dx, Write::kOverwrite), back + "dlosses must be given");
  EXPECT_EQ(backward(x, dx, Write::kOverwrite),
            back + "dlosses must have the shape [3], got float32 [3,4]");
  EXPECT_EQ(backward(losses, {}, Write::kOverwrite), back + "dlogits must be given");
  EXPECT_EQ(backward(reshape(slice(dx, 1, 0, 1), {3}), dx, Write::kOverwrite),
            back + "dlogits must not overlap dlosses");
  EXPECT_EQ(backward(losses, x, Write::kAccumulate), back + "dlogits must not overlap logits");
  Tensor big(DType::kFloat32, {4, 4});
  layer.forward(slice(big, 0, 0, 3), good, saved, to);
  EXPECT_EQ(backward(losses, slice(big, 0, 1, 4), Write::kOverwrite),
            back +
                "dlogits must not overlap logits, unless it is logits itself, with the same "
                "strides");
}

}  // namespace
}  // namespace qkv::test
