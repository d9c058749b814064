// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <optional>
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

constexpr Index kTokens = 7;

Embedding drawn(Index width, std::optional<Index> padding = std::nullopt,
                DType dtype = DType::kFloat64) {
  Embedding layer(kTokens, width, padding, dtype);
  initialise(layer, 1);
  return layer;
}

Dims with_width(Dims shape, Index width) {
  shape.push_back(width);
  return shape;
}

TEST(Embedding, LooksUpIdsOfAnyTypeRankAndLayout) {
  Random random(1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Embedding layer = drawn(5, std::nullopt, dtype);
    const std::vector<double> table = values_of(layer.parameters().weight);
    for (const Dims& shape : {Dims{}, Dims{0}, Dims{70}, Dims{2, 3}, Dims{2, 1, 2, 1, 2, 1, 2}}) {
      for (const DType id_type : {DType::kInt32, DType::kInt64}) {
        for (const Layout ids_layout : kLayouts) {
          for (const Layout out_layout : kOwnLayouts) {
            Guarded ids(id_type, shape, ids_layout);
            ids.fill_whole(random, 0, kTokens - 1);
            Guarded out(dtype, with_width(shape, 5), out_layout);
            Embedding::Saved saved;
            layer.forward(ids, saved, out);
            std::vector<double> want;
            for (const double id : values_of(ids)) {
              const auto row = table.begin() + static_cast<Index>(id) * 5;
              want.insert(want.end(), row, row + 5);
            }
            EXPECT_TRUE(compare("out", out.view(), want, {}, to_string(shape)));
            EXPECT_TRUE(out.intact());
          }
        }
      }
    }
  }
}

TEST(Embedding, GradientIsThatOfCentralDifferences) {
  Embedding layer = drawn(3);
  const std::vector<std::int32_t> ids{4, 0, 4, 4, 2, 0};
  const ConstView view(ids.data(), {2, 3});
  const Tensor dout = random_tensor(DType::kFloat64, {2, 3, 3}, 2);
  Embedding::Saved saved;
  Tensor out(DType::kFloat64, {2, 3, 3});
  auto loss = [&] {
    layer.forward(view, saved, out);
    return dot(out, dout);
  };
  loss();
  auto gradients = layer.zero_gradients();
  layer.backward(saved, dout, gradients);
  EXPECT_EQ(expect_gradients({}, layer, gradients, loss, "ids 4 0 4 4 2 0"), 1);
}

// Returns `table` plus the rows of dout, each added to its token's row in C order, in float32.
std::vector<float> summed(const std::vector<std::int64_t>& ids, const Tensor& dout, Index width,
                          std::vector<float> table) {
  for (std::size_t n = 0; n < ids.size(); ++n) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) {
      table[static_cast<std::size_t>(ids[n] * width) + c] +=
          dout.values<float>()[n * static_cast<std::size_t>(width) + c];
    }
  }
  return table;
}

TEST(Embedding, GradientRowsAreSummedInOrderForAnyThreads) {
  constexpr Index kWidth = 37;  // more than one task on several threads; the last has fewer columns
  const Embedding layer = drawn(kWidth, std::nullopt, DType::kFloat32);
  std::vector<std::int64_t> ids;
  for (std::int64_t n = 0; n < 300; ++n) ids.push_back(n * n % (kTokens - 1));
  const Tensor dout = random_tensor(DType::kFloat32, {300, kWidth}, 3);
  for (const int threads : {1, 2, 7}) {
    Context context(Executor::threads(threads));
    Embedding::Saved saved;
    Tensor out(DType::kFloat32, {300, kWidth});
    layer.forward(ids, saved, out, context);
    // With Write::kOverwrite the rows of tokens that never occur are zero.
    auto gradients = layer.zero_gradients();
    fill_normal(gradients.weight, 4);
    const std::vector<float> before(gradients.weight.values<float>().begin(),
                                    gradients.weight.values<float>().end());
    const auto now = [&] {
      const auto values = gradients.weight.values<float>();
      return std::vector<float>(values.begin(), values.end());
    };
    const std::vector<float> zeros(static_cast<std::size_t>(kTokens * kWidth));
    layer.backward(saved, dout, gradients, Write::kOverwrite, context);
    EXPECT_EQ(now(), summed(ids, dout, kWidth, zeros)) << threads;
    // With Write::kAccumulate the sums start from the previous values.
    fill_normal(gradients.weight, 4);
    layer.backward(saved, dout, gradients, Write::kAccumulate, context);
    EXPECT_EQ(now(), summed(ids, dout, kWidth, before)) << threads;
  }
}

TEST(Embedding, PaddingIsLookedUpAndGetsNoGradient) {
  const Embedding layer = drawn(2, 3);
  const std::vector<std::int64_t> ids{3, 1, 3};
  Embedding::Saved saved;
  Tensor out(DType::kFloat64, {3, 2});
  layer.forward(ids, saved, out);
  EXPECT_EQ(out.values<double>()[0], layer.parameters().weight.values<double>()[6]);
  Tensor dout = random_tensor(DType::kFloat64, {3, 2}, 3);
  for (const std::size_t n : {0U, 1U, 4U, 5U}) {
    dout.values<double>()[n] = std::numeric_limits<double>::quiet_NaN();
  }
  auto gradients = layer.zero_gradients();
  fill_normal(gradients.weight, 4);
  layer.backward(saved, dout, gradients);
  std::vector<double> want(kTokens * 2);
  want[2] = dout.values<double>()[2];
  want[3] = dout.values<double>()[3];
  EXPECT_TRUE(compare("dweight", gradients.weight, want, {}, "padding 3"));
}

TEST(Embedding, BackwardUsesTheIdsOfTheForwardPass) {
  const Embedding layer = drawn(2);
  std::vector<std::int64_t> ids{3, 1};
  Embedding::Saved saved;
  Tensor out(DType::kFloat64, {2, 2});
  layer.forward(ids, saved, out);
  ids = {1 << 30, -5};  // would be far outside the table
  auto gradients = layer.zero_gradients();
  layer.backward(saved, random_tensor(DType::kFloat64, {2, 2}, 1), gradients);
  EXPECT_NE(gradients.weight.values<double>()[6], 0);
  // An absent gradient stays absent.
  Embedding::Parameters none;
  layer.backward(saved, out, none);
  EXPECT_FALSE(none.weight.given());
}

TEST(Embedding, ErrorsNameTheArgument) {
  EXPECT_EQ(error_of([] { Embedding(0, 2); }), "Embedding: tokens must be at least 1, got 0");
  EXPECT_EQ(error_of([] { Embedding(2, 0); }), "Embedding: width must be at least 1, got 0");
  EXPECT_EQ(error_of([] { Embedding(3, 2, 3); }), "Embedding: padding must lie in 0..2, got 3");
  EXPECT_EQ(error_of([] { Embedding(3, 2, -1); }), "Embedding: padding must lie in 0..2, got -1");
  EXPECT_EQ(error_of([] { Embedding(3, 2, 0, DType::kInt32); }),
            "TypeError: Embedding: dtype must be float32 or float64, got int32");
  EXPECT_EQ(error_of([] { Embedding(Index{1} << 40, Index{1} << 40); }),
            "Embedding: tokens or width must be smaller: parameters may take at most 2^63 - 1 "
            "bytes, got float32 [1099511627776,1099511627776]");

  const Embedding layer = drawn(2);
  Tensor out(DType::kFloat64, {2, 3, 2});
  for (double& value : out.values<double>()) value = 7;
  Embedding::Saved saved;
  auto gradients = layer.zero_gradients();
  const std::vector<std::int64_t> good{0, 1, 2, 3, 4, 5};
  const auto forward = [&](const ConstView& ids, const View& to) {
    Tensor other(DType::kFloat64, {2, 3, 2});
    layer.forward(ConstView(good.data(), {2, 3}), saved, other);
    const std::string message = error_of([&] { layer.forward(ids, saved, to); });
    for (const double value : out.values<double>()) EXPECT_EQ(value, 7);
    // Results of an earlier pass must not be taken for those of the failed one.
    EXPECT_EQ(error_of([&] { layer.backward(saved, out, gradients); }),
              "Embedding::backward: saved must come from a forward pass of this layer");
    return message;
  };
  const std::vector<std::int32_t> high{0, 1, 2, 3, 7, -1};
  const std::string prefix = "Embedding::forward: ";
  EXPECT_EQ(forward(ConstView(high.data(), {2, 3}), out),
            prefix + "ids must lie in 0..6, got 7 at [1,1]");
  const std::vector<std::int64_t> low{0, 1, -3, 3, 7, -1};
  EXPECT_EQ(forward(ConstView(low.data(), {2, 3}), out),
            prefix + "ids must lie in 0..6, got -3 at [0,2]");
  EXPECT_EQ(forward({}, out), prefix + "ids must be given");
  EXPECT_EQ(forward(out, out),
            "TypeError: " + prefix + "ids must be int32 or int64, got float64 [2,3,2]");
  EXPECT_EQ(forward(ConstView(good.data(), {1, 1, 1, 1, 1, 1, 2, 3}), out),
            prefix + "ids must have rank 0 to 7, got int64 [1,1,1,1,1,1,2,3]");
  EXPECT_EQ(forward(good, out), prefix + "out must have the shape [6,2], got float64 [2,3,2]");
  EXPECT_EQ(forward(ConstView(good.data(), {2, 3}), {}), prefix + "out must be given");
  EXPECT_EQ(forward(ConstView(good.data(), {2, 3}),
                    View(out.values<double>().data(), {2, 3, 2}, {6, 2, 0})),
            prefix + "out must not overlap itself, got float64 [2,3,2] with strides [6,2,0]");
  Tensor zeros(DType::kFloat64, {2, 3, 2});
  const ConstView ids_in_zeros(reinterpret_cast<std::int64_t*>(zeros.values<double>().data()),
                               {2, 3});
  EXPECT_EQ(forward(ids_in_zeros, zeros), prefix + "out must not overlap ids");

  layer.forward(ConstView(good.data(), {2, 3}), saved, zeros);
  const auto backward = [&](const ConstView& dout) {
    return error_of([&] { layer.backward(saved, dout, gradients); });
  };
  EXPECT_EQ(backward({}), "Embedding::backward: dout must be given");
  EXPECT_EQ(backward(gradients.weight),
            "Embedding::backward: dout must have the shape [2,3,2], got float64 [7,2]");
  gradients.weight = Tensor(DType::kFloat64, {2, 7});
  EXPECT_EQ(backward(out),
            "Embedding::backward: gradients.weight must have the shape [7,2], got float64 [2,7]");
  const Embedding other(8, 2, std::nullopt, DType::kFloat64);
  EXPECT_EQ(error_of([&] { other.backward(saved, out, gradients); }),
            "Embedding::backward: saved must come from a forward pass of this layer");
}

}  // namespace
}  // namespace qkv::test
