// SPDX-License-Identifier: Apache-2.0
// Tests norms and clipping of gradients, and their sums in a fixed order.
#include "translator/optimiser/gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "reference/update.h"
#include "tests/app/files/files.h"
#include "tests/app/translator/parameters.h"
#include "translator/optimiser/pieces.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::numbers;
using test::Weights;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Gradients, NormIsTheRootOfAllSquares) {
  for (const DType dtype : kTypes) {
    Weights weights(dtype);
    double sum = 0;
    for (const double g : numbers(weights.gradients)) sum += g * g;
    EXPECT_NEAR(gradient_norm(weights.list()), std::sqrt(sum), 1e-14 * std::sqrt(sum));
  }
  // The squares of these numbers overflow float32.
  Weights large(DType::kFloat32, 1, 1e30);
  EXPECT_NEAR(gradient_norm(large.list()) / gradient_norm(Weights(DType::kFloat32).list()), 1e30,
              1e23);
  EXPECT_EQ(gradient_norm({}), 0);
}

// Shapes whose numbers of elements are around that of a piece, or of several pieces.
const std::vector<Dims> kPieces{{kPiece - 1}, {0, 3},       {kPiece},
                                {1},          {kPiece + 1}, {3 * kPiece + 5}};

struct Pieces {
  explicit Pieces(DType dtype, std::uint64_t seed = 1) {
    for (const Dims& shape : kPieces) {
      tensors.push_back(test::random_tensor(dtype, shape, seed++));
      list.push_back({"p", tensors.back().view(), tensors.back().view()});
    }
  }
  std::vector<Tensor> tensors{};
  std::vector<TrainedParameter> list{};
};

// The expected norm: the reference sums the squares of each piece, and the sums are added in order.
template <class T>
double norm_by_pieces(const Pieces& pieces) {
  double sum = 0;
  for (const Tensor& tensor : pieces.tensors) {
    for (Index first = 0; first < tensor.element_count(); first += kPiece) {
      sum += reference::squares(tensor.values<T>().data() + first,
                                std::min(kPiece, tensor.element_count() - first));
    }
  }
  return std::sqrt(sum);
}

TEST(Gradients, NormHasTheBitsOfItsPiecesOnAnyThreads) {
  const Pieces single(DType::kFloat32);
  const Pieces wide(DType::kFloat64);
  for (const int threads : {1, 2, 3}) {
    const Executor executor = Executor::threads(threads);
    EXPECT_EQ(gradient_norm(single.list, executor), norm_by_pieces<float>(single));
    EXPECT_EQ(gradient_norm(wide.list, executor), norm_by_pieces<double>(wide));
  }
  EXPECT_EQ(gradient_norm(single.list), norm_by_pieces<float>(single));
}

TEST(Gradients, ClipFactorIsAtMostOne) {
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(1, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(4, kInfinity), 1);
  EXPECT_EQ(clip_factor(kInfinity, 1), 1);
  EXPECT_EQ(clip_factor(std::nan(""), 1), 1);
}

TEST(Gradients, ClippingKeepsTheDirection) {
  for (const DType dtype : kTypes) {
    Weights weights(dtype);
    const std::vector<double> before = numbers(weights.gradients);
    const double norm = gradient_norm(weights.list());
    EXPECT_EQ(clip_gradients(weights.list(), 2 * norm), norm);
    EXPECT_EQ(clip_gradients(weights.list(), kInfinity), norm);
    EXPECT_EQ(numbers(weights.gradients), before);
    EXPECT_EQ(clip_gradients(weights.list(), norm / 4), norm);
    const std::vector<double> after = numbers(weights.gradients);
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_NEAR(after[i], before[i] / 4, 1e-7 * std::abs(before[i]));
    }
  }
}

TEST(Gradients, NonFiniteNormsAreReportedButDoNotClip) {
  for (const double wrong : {std::nan(""), kInfinity}) {
    Weights weights(DType::kFloat64);
    weights.gradients[1].values<double>()[2] = wrong;
    const double first = weights.gradients[0].values<double>()[0];
    EXPECT_FALSE(std::isfinite(clip_gradients(weights.list(), 1e-3)));
    EXPECT_EQ(weights.gradients[0].values<double>()[0], first);
  }
}

// Sums five sets of one number each, as ((x0 + x1) + (x2 + x3)) + x4. The result depends on the
// order.
TEST(Gradients, TheTreeIsFixed) {
  const std::vector<double> x{1, 0x1p-53, 0x1p-53, 0x1p-53, 0x1p-54};
  std::vector<Tensor> tensors;
  std::vector<std::vector<TrainedParameter>> sets;
  for (const double value : x) {
    Tensor& tensor = tensors.emplace_back(DType::kFloat64, Dims{1});
    tensor.values<double>()[0] = value;
    sets.push_back({{"x", tensor.view(), tensor.view()}});
  }
  sum_tree(sets);
  const double want = ((x[0] + x[1]) + (x[2] + x[3])) + x[4];
  EXPECT_EQ(tensors[0].values<double>()[0], want);
  // Summing from the first to the last, or from the last to the first, gives other results.
  EXPECT_NE(want, (((x[0] + x[1]) + x[2]) + x[3]) + x[4]);
  EXPECT_NE(want, x[0] + (x[1] + (x[2] + (x[3] + x[4]))));
}

TEST(Gradients, SumsHaveTheSameBitsOnAnyThreads) {
  for (const DType dtype : kTypes) {
    for (std::uint64_t count = 0; count <= 9; ++count) {
      const auto summed = [&](const Executor& executor) {
        std::vector<Weights> owners;
        for (std::uint64_t n = 0; n < count; ++n) owners.emplace_back(dtype, 10 * n);
        std::vector<std::vector<TrainedParameter>> sets;
        for (Weights& weights : owners) sets.push_back(weights.list());
        sum_tree(sets, executor);
        return count == 0 ? std::vector<double>() : numbers(owners[0].gradients);
      };
      const std::vector<double> serial = summed({});
      EXPECT_EQ(serial, summed(Executor::threads(3)));
      for (std::size_t i = 0; i < serial.size(); ++i) {
        double want = 0;
        for (std::uint64_t n = 0; n < count; ++n) {
          want += numbers(Weights(dtype, 10 * n).gradients)[i];
        }
        EXPECT_NEAR(serial[i], want, dtype == DType::kFloat32 ? 1e-5 : 1e-14);
      }
    }
  }
}

// Sums parameters of several pieces, some of them in float64.
TEST(Gradients, SumsOfPiecesAreTheTree) {
  for (const int threads : {1, 2, 3}) {
    std::vector<Pieces> owners;
    std::vector<std::vector<TrainedParameter>> sets;
    for (std::uint64_t n = 0; n < 5; ++n) {
      Pieces& both = owners.emplace_back(DType::kFloat32, 100 * n);
      Pieces wide(DType::kFloat64, 100 * n + 50);
      for (std::size_t p = 0; p < wide.list.size(); ++p) {
        both.list.push_back(wide.list[p]);
        both.tensors.push_back(std::move(wide.tensors[p]));
      }
    }
    for (Pieces& owner : owners) sets.push_back(owner.list);
    std::vector<std::vector<double>> x;
    for (const Pieces& owner : owners) x.push_back(numbers(owner.tensors));
    sum_tree(sets, Executor::threads(threads));
    const std::vector<double> got = numbers(owners[0].tensors);
    const std::size_t singles = got.size() / 2;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto add = [&](double a, double b) {
        return i < singles ? double{static_cast<float>(a) + static_cast<float>(b)} : a + b;
      };
      const double want = add(add(add(x[0][i], x[1][i]), add(x[2][i], x[3][i])), x[4][i]);
      wrong += got[i] == want ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0U) << threads << " threads";
  }
}

TEST(Gradients, WrongCalls) {
  Weights weights(DType::kFloat32);
  EXPECT_EQ(complaint<Error>([&] { clip_gradients(weights.list(), 0); }),
            "clip_gradients: most must be positive, got 0");
  auto list = weights.list();
  list[1].gradient = Weights(DType::kFloat64).list()[1].gradient;
  EXPECT_EQ(complaint<Error>([&] { scale_gradients(list, 1); }),
            "scale_gradients: vector is float32 [3] but its gradient is float64 [3]");
  list = weights.list();
  list[0].gradient = transpose(list[0].gradient, 0, 1);
  list[0].value = transpose(list[0].value, 0, 1);
  EXPECT_EQ(complaint<Error>([&] { gradient_norm(list); }),
            "gradient_norm: matrix and its gradient must be in C order");
  Tensor whole(DType::kInt32, {2});
  EXPECT_EQ(complaint<Error>([&] {
              const TrainedParameter p{"n", whole.view(), whole.view()};
              gradient_norm({&p, 1});
            }),
            "gradient_norm: n must be float32 or float64, got int32 [2]");
  Weights other(DType::kFloat64);
  EXPECT_EQ(complaint<Error>([&] {
              sum_tree(std::vector{weights.list(), other.list()});
            }),
            "sum_tree: matrix must be alike in all sets, got float32 [5,7] and float64 [5,7]");
  auto shorter = weights.list();
  shorter.pop_back();
  EXPECT_EQ(complaint<Error>([&] {
              sum_tree(std::vector{weights.list(), shorter});
            }),
            "sum_tree: sets must have as many parameters each, got 3 and 2");
}

}  // namespace
}  // namespace qkv::app
