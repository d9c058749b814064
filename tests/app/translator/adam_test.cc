// SPDX-License-Identifier: Apache-2.0
// Tests Adam and AdamW against their formulas, and training that resumes from saved moments.
#include "translator/optimiser/adam.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "tests/app/files/files.h"
#include "tests/app/translator/parameters.h"
#include "translator/optimiser/pieces.h"
#include "translator/optimiser/schedule.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::numbers;
using test::Weights;

// Adam (Kingma and Ba, algorithm 1) and AdamW (Loshchilov and Hutter, algorithm 2) as published, in
// long double.
struct Oracle {
  using Real = long double;

  // Takes one update, in which only the first `matrix` weights decay.
  void step(const std::vector<double>& g, double rate, const AdamOptions& o, std::size_t matrix) {
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = o.beta1 * m[i] + (1 - Real{o.beta1}) * g[i];
      v[i] = o.beta2 * v[i] + (1 - Real{o.beta2}) * Real{g[i]} * g[i];
      const Real m_hat = m[i] / (1 - std::pow(Real{o.beta1}, t));
      const Real v_hat = v[i] / (1 - std::pow(Real{o.beta2}, t));
      const Real decay = i < matrix ? o.weight_decay : 0;
      w[i] -= rate * (m_hat / (std::sqrt(v_hat) + o.epsilon) + decay * w[i]);
    }
  }

  std::vector<Real> w;
  std::vector<Real> m = std::vector<Real>(w.size());
  std::vector<Real> v = std::vector<Real>(w.size());
  int t = 0;
};

// The largest difference of a weight from the oracle's in 200 updates. Only the first parameter
// decays: it is a matrix, and the others have one axis or no numbers.
double furthest_from_oracle(DType dtype, const AdamOptions& options, double scale) {
  Weights weights(dtype, 1, scale);
  const std::vector<double> start = numbers(weights.values);
  Oracle oracle{{start.begin(), start.end()}};
  const auto matrix = static_cast<std::size_t>(weights.values[0].element_count());
  Adam adam(weights.list(), options);
  double furthest = 0;
  for (int n = 0; n < 200; ++n) {
    const double rate = 0.01 / (1 + n);
    weights.draw_gradients(static_cast<std::uint64_t>(100 + 10 * n), scale);
    oracle.step(numbers(weights.gradients), rate, options, matrix);
    adam.step(weights.list(), rate);
    const std::vector<double> got = numbers(weights.values);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double difference = std::abs(got[i] - static_cast<double>(oracle.w[i]));
      if (!(difference <= furthest)) furthest = difference;  // true for NaN as well
    }
  }
  return furthest;
}

// The bounds follow from 200 updates that each round weights of about 1: at most 200 half units in
// the last place, or about sqrt(200) of them if the errors have random signs.
TEST(Adam, IsItsFormula) {
  for (const double scale : {1e-6, 1.0, 1e3}) {
    EXPECT_LT(furthest_from_oracle(DType::kFloat64, {}, scale), 1e-13) << scale;
    EXPECT_LT(furthest_from_oracle(DType::kFloat32, {}, scale), 1e-5) << scale;
  }
}

TEST(Adam, DecaysMatricesOnly) {
  const AdamOptions options{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  EXPECT_LT(furthest_from_oracle(DType::kFloat64, options, 1), 1e-13);
  EXPECT_LT(furthest_from_oracle(DType::kFloat32, options, 1), 1e-5);
}

// The case w = 1, rate 0.1, gradients 0.5, -0.25, 2, computed from the formula with 30 digits.
// torch's Adam and (with weight_decay = 0.1) AdamW give equal digits.
TEST(Adam, NumbersWorkedOut) {
  const auto run = [](double weight_decay) {
    Tensor w(DType::kFloat64, {1, 1});
    Tensor g(DType::kFloat64, {1, 1});
    w.values<double>()[0] = 1;
    const std::vector<TrainedParameter> list{{"w", w.view(), g.view()}};
    Adam adam(list, {.weight_decay = weight_decay});
    std::vector<double> path;
    for (const double gradient : {0.5, -0.25, 2.0}) {
      g.values<double>()[0] = gradient;
      adam.step(list, 0.1);
      path.push_back(w.values<double>()[0]);
    }
    return path;
  };
  const std::vector<double> adam = run(0);
  EXPECT_NEAR(adam[0], 0.90000000199999996000, 1e-15);
  EXPECT_NEAR(adam[1], 0.87336629870784616256, 1e-15);
  EXPECT_NEAR(adam[2], 0.80630153452915290187, 1e-15);
  const std::vector<double> decayed = run(0.1);
  EXPECT_NEAR(decayed[0], 0.89000000199999996000, 1e-15);
  EXPECT_NEAR(decayed[1], 0.85446629868784616296, 1e-15);
  EXPECT_NEAR(decayed[2], 0.77885687152227444064, 1e-15);
}

// A matrix (which decays) and a vector (which does not), both of several pieces of kPiece numbers,
// then a vector without numbers, and a vector and a matrix of one number.
struct LargeWeights {
  explicit LargeWeights(DType dtype) {
    const Dims shapes[] = {{3, kPiece + 1}, {2 * kPiece}, {0}, {1}, {1, 1}};
    std::uint64_t seed = 1;
    for (const Dims& shape : shapes) {
      values.push_back(test::random_tensor(dtype, shape, seed++));
      gradients.push_back(test::random_tensor(dtype, shape, seed++));
      list.push_back({"p", values.back().view(), gradients.back().view()});
    }
  }
  std::vector<Tensor> values{};
  std::vector<Tensor> gradients{};
  std::vector<TrainedParameter> list{};
};

// The numbers of all parameters and moments after three updates.
std::vector<double> updated(DType dtype, const AdamOptions& options, const Executor& executor) {
  LargeWeights weights(dtype);
  Adam adam(weights.list, options);
  for (int n = 0; n < 3; ++n) {
    adam.step(weights.list, {.learning_rate = 0.01, .gradient_factor = 0.3}, executor);
  }
  std::vector<Tensor> all = std::move(weights.values);
  for (AdamMoments& moments : adam.moments()) {
    all.push_back(std::move(moments.m));
    all.push_back(std::move(moments.v));
  }
  return numbers(all);
}

// Compares the first update, from moments of 0, with one computed number by number.
template <class T>
void check_first_update(const AdamOptions& options) {
  LargeWeights weights(dtype_of<T>);
  const std::vector<double> before = numbers(weights.values);
  const std::vector<double> gradients = numbers(weights.gradients);
  const auto matrix = static_cast<std::size_t>(weights.values[0].element_count());
  const std::size_t last = before.size() - 1;  // index of the [1,1] parameter
  Adam adam(weights.list, options);
  adam.step(weights.list, {.learning_rate = 0.01, .gradient_factor = 0.3}, {});
  EXPECT_EQ(numbers(weights.gradients), gradients);
  const std::vector<double> after = numbers(weights.values);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const T g = static_cast<T>(0.3) * static_cast<T>(gradients[i]);
    const T m = static_cast<T>(1 - options.beta1) * g;
    const T v = static_cast<T>(1 - options.beta2) * (g * g);
    const double decay = i < matrix || i == last ? options.weight_decay : 0;
    const T shrink = static_cast<T>(1 - 0.01 * decay);
    const T m_rate = static_cast<T>(0.01 / (1 - options.beta1));
    const T v_factor = static_cast<T>(1 / (1 - options.beta2));
    const T want = shrink * static_cast<T>(before[i]) -
                   m_rate * m / (std::sqrt(v * v_factor) + static_cast<T>(options.epsilon));
    wrong += after[i] == static_cast<double>(want) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0U);
}

TEST(Adam, HasTheBitsOfThePlainLoop) {
  check_first_update<float>({.weight_decay = 0.1});
  check_first_update<double>({.weight_decay = 0.1});
}

TEST(Adam, HasTheSameBitsOnAnyThreads) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const std::vector<double> serial = updated(dtype, {.weight_decay = 0.1}, {});
    for (const int threads : {1, 2, 3}) {
      EXPECT_EQ(updated(dtype, {.weight_decay = 0.1}, Executor::threads(threads)), serial);
    }
  }
}

// Scaling the gradients before the step or in it gives equal results: the factor is a power of two,
// so that neither rounds.
TEST(Adam, MultipliesGradientsWhileItReadsThem) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Weights read(dtype);
    Weights scaled(dtype);
    Adam first(read.list(), {});
    Adam second(scaled.list(), {});
    first.step(read.list(), {.learning_rate = 0.01, .gradient_factor = 0.25}, {});
    scale_gradients(scaled.list(), 0.25);
    second.step(scaled.list(), 0.01);
    EXPECT_EQ(numbers(read.values), numbers(scaled.values));
    // Updates hardly depend on the size of gradients, but moments do.
    for (std::size_t p = 0; p < first.moments().size(); ++p) {
      const auto m_and_v = [p](Adam& adam) {
        std::vector<Tensor> both;
        both.push_back(contiguous(adam.moments()[p].m));
        both.push_back(contiguous(adam.moments()[p].v));
        return numbers(both);
      };
      EXPECT_EQ(m_and_v(first), m_and_v(second));
    }
    EXPECT_NE(numbers(read.gradients), numbers(scaled.gradients));
  }
}

TEST(Adam, ANonFiniteGradientSpoilsOnlyItsOwnWeight) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      Weights weights(dtype);
      core::store(dtype, weights.gradients[0].view().data(), 17, wrong);
      Adam adam(weights.list(), {});
      adam.step(weights.list(), 0.01);
      const std::vector<double> after = numbers(weights.values);
      for (std::size_t i = 0; i < after.size(); ++i) {
        EXPECT_EQ(std::isfinite(after[i]), i != 17) << i;
      }
    }
  }
}

// The moments and the update count are the complete state.
TEST(Adam, GoesOnFromItsMoments) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Weights whole(dtype);
    Weights parts(dtype);
    Adam adam(whole.list(), {});
    Adam first(parts.list(), {});
    const auto step = [](Weights& weights, Adam& optimiser, int n) {
      weights.draw_gradients(static_cast<std::uint64_t>(50 + 10 * n));
      optimiser.step(weights.list(), 0.01);
    };
    for (int n = 0; n < 8; ++n) step(whole, adam, n);
    for (int n = 0; n < 3; ++n) step(parts, first, n);
    Adam second(parts.list(), {});
    for (std::size_t p = 0; p < second.moments().size(); ++p) {
      EXPECT_EQ(second.moments()[p].name, first.moments()[p].name);
      copy(first.moments()[p].m, second.moments()[p].m);
      copy(first.moments()[p].v, second.moments()[p].v);
    }
    second.set_updates(first.updates());
    for (int n = 3; n < 8; ++n) step(parts, second, n);
    EXPECT_EQ(numbers(parts.values), numbers(whole.values));
    EXPECT_EQ(second.updates(), 8);
  }
}

TEST(Adam, WrongCalls) {
  Weights weights(DType::kFloat32);
  const auto refused = [&](const AdamOptions& options) {
    return complaint<Error>([&] { Adam(weights.list(), options); });
  };
  EXPECT_EQ(refused({.beta1 = 1}), "Adam: beta1 must be in [0,1), got 1");
  EXPECT_EQ(refused({.beta2 = -0.5}), "Adam: beta2 must be in [0,1), got -0.5");
  EXPECT_EQ(refused({.epsilon = std::nan("")}), "Adam: epsilon must be in [1e-30,1), got nan");
  EXPECT_EQ(refused({.epsilon = 0}), "Adam: epsilon must be in [1e-30,1), got 0");
  EXPECT_EQ(refused({.weight_decay = -1}), "Adam: weight_decay must be in [0,1000000), got -1");
  Adam adam(weights.list(), {});
  const std::vector<double> before = numbers(weights.values);
  auto list = weights.list();
  list.pop_back();
  EXPECT_EQ(complaint<Error>([&] { adam.step(list, 1); }),
            "Adam::step: list must have the 3 parameters of the constructor, got 2");
  list = weights.list();
  std::swap(list[0], list[1]);
  EXPECT_EQ(complaint<Error>([&] { adam.step(list, 1); }),
            "Adam::step: vector must be the constructor's matrix float32 [5,7], got float32 [3]");
  list = weights.list();
  list[1].name = "other";
  EXPECT_EQ(complaint<Error>([&] { adam.step(list, 1); }),
            "Adam::step: other must be the constructor's vector float32 [3], got float32 [3]");
  list = weights.list();
  list[1].gradient = list[0].gradient;
  EXPECT_EQ(complaint<Error>([&] { adam.step(list, 1); }),
            "Adam::step: vector is float32 [3] but its gradient is float32 [5,7]");
  EXPECT_EQ(numbers(weights.values), before);
  EXPECT_EQ(adam.updates(), 0);
}

TEST(Schedule, RisesAndFalls) {
  const Schedule schedule{.rate = 0.8, .warmup = 4, .decay = 10};
  EXPECT_EQ(learning_rate(schedule, 1), 0.2);
  EXPECT_EQ(learning_rate(schedule, 3), 0.8 * 0.75);
  EXPECT_EQ(learning_rate(schedule, 4), 0.8);
  EXPECT_NEAR(learning_rate(schedule, 14), 0.8 / std::sqrt(2.0), 1e-16);
  EXPECT_NEAR(learning_rate(schedule, 34), 0.4, 1e-16);
  EXPECT_EQ(learning_rate({.rate = 0.8, .warmup = 4}, 1000000), 0.8);
  EXPECT_EQ(learning_rate({.rate = 0.8}, 1), 0.8);
}

TEST(Schedule, RefusesInvalidSchedules) {
  const auto refused = [](const Schedule& schedule, Index update) {
    return complaint<Error>([&] { learning_rate(schedule, update); });
  };
  EXPECT_EQ(refused({.rate = -1}, 1), "learning_rate: rate must be finite and above 0, got -1");
  EXPECT_EQ(refused({.rate = 0}, 1), "learning_rate: rate must be finite and above 0, got 0");
  EXPECT_EQ(refused({.warmup = -2}, 1), "learning_rate: warmup must be at least 0, got -2");
  EXPECT_EQ(refused({.decay = std::numeric_limits<double>::infinity()}, 1),
            "learning_rate: decay must be finite and not negative, got inf");
  EXPECT_EQ(refused({}, 0), "learning_rate: update must be at least 1, got 0");
}

}  // namespace
}  // namespace qkv::app
