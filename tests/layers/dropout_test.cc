// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "core/philox.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

RunState training() { return {Mode::kTrain, 5, 17}; }

// Returns for each of n elements whether the definition in qkv/layers/dropout.h keeps it.
std::vector<bool> kept(std::size_t n, double p, const RunState& run) {
  const std::uint64_t seed = dropout_seed(run);
  std::vector<bool> result;
  for (std::size_t element = 0; element < n; ++element) {
    const auto words = core::philox4x32_10(
        {static_cast<std::uint32_t>(element / 4), 0, 0, 3},
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    result.push_back(words[element % 4] >= std::floor(p * 0x1p32));
  }
  return result;
}

// Returns x times the factors of the definition, in C order.
std::vector<double> dropped(const ConstView& x, double p, const RunState& run) {
  std::vector<double> values = values_of(x);
  const std::vector<bool> keep = kept(values.size(), p, run);
  const double factor =
      x.dtype() == DType::kFloat64 ? 1 / (1 - p) : static_cast<float>(1 / (1 - p));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double product = values[n] * factor;
    values[n] = !keep[n] ? 0 : x.dtype() == DType::kFloat64 ? product : static_cast<float>(product);
  }
  return values;
}

TEST(Dropout, DropsTheElementsThatTheDefinitionNamesInAnyLayout) {
  Random random(1);
  const DropoutLayer layer(0.3);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const Dims& shape : {Dims{}, Dims{0, 3}, Dims{2, 3}, Dims{3, 5, 211}}) {
      for (const Layout x_layout : kLayouts) {
        for (const Layout out_layout : kOwnLayouts) {
          Guarded x(dtype, shape, x_layout);
          x.fill_normal(random);
          Guarded out(dtype, shape, out_layout);
          DropoutLayer::Saved saved;
          RunState run = training();
          const std::vector<double> want = dropped(x, 0.3, run);
          layer.forward(x, run, saved, out);
          const std::string replay = to_string(shape) + " x " + std::string(name_of(x_layout)) +
                                     " out " + std::string(name_of(out_layout));
          EXPECT_TRUE(compare("out", out.view(), want, {}, replay));
          EXPECT_TRUE(out.intact()) << replay;
          EXPECT_EQ(run.step, 18U);
          // backward() multiplies by the same factors. Here it overwrites `out`, then adds to it.
          layer.backward(saved, x, out);
          EXPECT_TRUE(compare("dx", out.view(), want, {}, replay));
          layer.backward(saved, x, out, Write::kAccumulate);
          std::vector<double> twice;
          for (const double value : want) twice.push_back(2 * value);
          EXPECT_TRUE(compare("dx", out.view(), twice, {}, replay + " added"));
          EXPECT_TRUE(out.intact()) << replay;
        }
      }
    }
  }
}

TEST(Dropout, WorksInPlace) {
  const DropoutLayer layer(0.5);
  for (const bool strided : {false, true}) {
    Tensor x = random_tensor(DType::kFloat32, {30, 70}, 1);
    const View view = strided ? transpose(x, 0, 1) : x.view();
    RunState run = training();
    const std::vector<double> want = dropped(view, 0.5, run);
    DropoutLayer::Saved saved;
    layer.forward(view, run, saved, view);
    EXPECT_TRUE(compare("out", view, want, {}, "in place"));
    fill_normal(x, 1);
    layer.backward(saved, view, view);
    EXPECT_TRUE(compare("dx", view, want, {}, "in place"));
  }
}

TEST(Dropout, EvaluationChangesNothing) {
  const DropoutLayer layer(0.5);
  Tensor x = random_tensor(DType::kFloat32, {3, 70}, 1);
  Tensor out(DType::kFloat32, {3, 70});
  RunState run{Mode::kEvaluate, 5, 17};
  DropoutLayer::Saved saved;
  layer.forward(x, run, saved, out);
  EXPECT_EQ(bytes_of(out), bytes_of(x));
  EXPECT_EQ(run.step, 17U);
  Tensor dx(DType::kFloat32, {3, 70});
  layer.backward(saved, x, dx);
  layer.backward(saved, x, dx, Write::kAccumulate);
  std::vector<double> twice;
  for (const double value : values_of(x)) twice.push_back(2 * value);
  EXPECT_TRUE(compare("dx", dx, twice, {}, "evaluation"));
  layer.forward(x, run, saved, x);
  EXPECT_TRUE(compare("x", x, values_of(out), {}, "in place"));
}

// In training a pass takes a step whatever p is, so that removing dropout changes no other layer's
// draw.
TEST(Dropout, WithProbabilityZeroTakesAStep) {
  Tensor x = random_tensor(DType::kFloat32, {3, 70}, 1);
  const std::vector<std::uint8_t> before = bytes_of(x);
  RunState run = training();
  DropoutLayer::Saved saved;
  DropoutLayer().forward(x, run, saved, x);
  EXPECT_EQ(bytes_of(x), before);
  EXPECT_EQ(run.step, 18U);
}

TEST(Dropout, DropsTheShareItSaysAndDrawsAnewInEachStep) {
  const DropoutLayer layer(0.1);
  const Tensor ones = [] {
    Tensor tensor(DType::kFloat64, {20000});
    for (double& value : tensor.values<double>()) value = 1;
    return tensor;
  }();
  Tensor out(DType::kFloat64, {20000});
  DropoutLayer::Saved saved;
  RunState run = training();
  layer.forward(ones, run, saved, out);
  const std::vector<double> first = values_of(out);
  double sum = 0;
  for (const double value : first) sum += value;
  // The mean is 1 within 4 standard errors: elements are 0 or 1/0.9, with the standard deviation
  // sqrt(0.1/0.9).
  EXPECT_NEAR(sum / 20000, 1, 4 * std::sqrt(0.1 / 0.9 / 20000));
  layer.forward(ones, run, saved, out);
  EXPECT_NE(values_of(out), first);
}

TEST(Dropout, ADroppedNumberIsZeroWhateverItWas) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensor x(DType::kFloat64, {64});
    for (double& element : x.values<double>()) element = value;
    RunState run = training();
    const std::vector<bool> keep = kept(64, 0.5, run);
    DropoutLayer::Saved saved;
    DropoutLayer(0.5).forward(x, run, saved, x);
    for (std::size_t n = 0; n < 64; ++n) {
      EXPECT_EQ(x.values<double>()[n] == 0, !keep[n]);
      EXPECT_EQ(std::isfinite(x.values<double>()[n]), !keep[n]);
    }
  }
}

TEST(Dropout, ErrorsNameTheArgument) {
  EXPECT_EQ(error_of([] { DropoutLayer(1); }), "DropoutLayer: dropout must be in [0,1), got 1");
  EXPECT_NE(error_of([] { DropoutLayer{std::numeric_limits<double>::quiet_NaN()}; }), "");
  const DropoutLayer layer(0.5);
  Tensor x = random_tensor(DType::kFloat32, {4, 3}, 1);
  const std::vector<std::uint8_t> before = bytes_of(x);
  Tensor out(DType::kFloat32, {4, 3});
  DropoutLayer::Saved saved;
  const auto forward = [&](const ConstView& from, const View& to) {
    RunState run = training();
    layer.forward(out, run, saved, out);
    run.step = 17;
    const std::string message = error_of([&] { layer.forward(from, run, saved, to); });
    EXPECT_EQ(run.step, 17U);
    EXPECT_EQ(bytes_of(x), before);
    EXPECT_EQ(error_of([&] { layer.backward(saved, x, out); }),
              "DropoutLayer::backward: saved must come from a forward pass");
    return message;
  };
  const std::string prefix = "DropoutLayer::forward: ";
  const std::vector<std::int32_t> whole(12);
  EXPECT_EQ(forward({}, out), prefix + "x must be given");
  EXPECT_EQ(forward(whole, out),
            "TypeError: " + prefix + "x must be float32 or float64, got int32 [12]");
  EXPECT_EQ(forward(x, {}), prefix + "out must be given");
  EXPECT_EQ(forward(x, transpose(out, 0, 1)),
            prefix + "out must have the shape [4,3], got float32 [3,4]");
  EXPECT_EQ(forward(slice(x, 0, 0, 3), slice(x, 0, 1, 4)),
            prefix + "out must not overlap x, unless it is x itself, with the same strides");
  EXPECT_EQ(forward(slice(x, 0, 0, 3), slice(x, 0, 2, -1, -1)),
            prefix + "out must not overlap x, unless it is x itself, with the same strides");
  const View one_place(x.values<float>().data(), {4, 3}, {0, 1});
  EXPECT_EQ(forward(one_place, one_place),
            prefix + "out must not overlap itself, got float32 [4,3] with strides [0,1]");

  RunState run = training();
  layer.forward(x, run, saved, out);
  const auto backward = [&](const ConstView& dout, const View& dx, Write write) {
    return error_of([&] { layer.backward(saved, dout, dx, write); });
  };
  const std::string back = "DropoutLayer::backward: ";
  EXPECT_EQ(backward(slice(x, 0, 0, 3), out, Write::kOverwrite),
            back + "dout must have the shape [4,3], got float32 [3,3]");
  EXPECT_EQ(backward(x, {}, Write::kOverwrite), back + "dx must be given");
  EXPECT_EQ(backward(x, x, Write::kAccumulate), back + "dx must not overlap dout");
}

}  // namespace
}  // namespace qkv::test
