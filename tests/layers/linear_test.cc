// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>
#include <qkv/target.h>

#include "layers/linear_products.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

constexpr std::string_view kTest = "linear_test";

// As the CPU target in use has it.
float multiply_add(float a, float b, float c) {
  return cpu_target() == "sse4" ? a * b + c : std::fma(a, b, c);
}

LinearParameters random_parameters(DType dtype, Index out, Index in, bool bias) {
  return {random_tensor(dtype, {out, in}, 1), bias ? random_tensor(dtype, {out}, 2) : Tensor()};
}

// Rows x [R,I] as doubles, and the same for dy: the plain sums, and the order of linear.h with T.
struct Plain {
  std::vector<double> x, w, b;
  std::size_t I, O;
  std::vector<double> y() const {
    std::vector<double> y;
    for (std::size_t r = 0; r < x.size() / I; ++r) {
      for (std::size_t o = 0; o < O; ++o) {
        double sum = b.empty() ? 0 : b[o];
        for (std::size_t i = 0; i < I; ++i) sum += x[r * I + i] * w[o * I + i];
        y.push_back(sum);
      }
    }
    return y;
  }
};

TEST(Linear, AnyLayoutAndRankGivesTheProduct) {
  Random random(1);
  Context context;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Bound bound = dtype == DType::kFloat64 ? Bound{1e-14, 1e-14} : Bound{1e-5, 1e-5};
    for (const Dims& shape :
         {Dims{1, 7}, Dims{17, 7}, Dims{2, 3, 7}, Dims{2, 2, 3, 7}, Dims{0, 7}}) {
      for (const Layout x_layout : kLayouts) {
        for (const Layout y_layout : kOwnLayouts) {
          for (const bool bias : {false, true}) {
            const std::string replay = std::string(name_of(dtype)) + to_string(shape) + " x " +
                                       std::string(name_of(x_layout)) + " y " +
                                       std::string(name_of(y_layout));
            Guarded x(dtype, shape, x_layout);
            x.fill_normal(random);
            Dims y_shape = shape;
            y_shape[shape.rank() - 1] = 4;
            Guarded y(dtype, y_shape, y_layout);
            const LinearParameters p = random_parameters(dtype, 4, 7, bias);
            layers::linear_forward(kTest, x, p, y, context);
            const Plain plain{values_of(x), values_of(p.weight), values_of(p.bias), 7, 4};
            EXPECT_TRUE(compare("y", y.view(), plain.y(), bound, replay));
            EXPECT_TRUE(y.intact()) << replay;
          }
        }
      }
    }
  }
}

// The order of sums is part of the meaning: one accumulator, ascending, fused but on SSE4.
TEST(Linear, ForwardSumsInTheOrderItPromises) {
  const Tensor x = random_tensor(DType::kFloat32, {3, 200}, 3);
  const LinearParameters p = random_parameters(DType::kFloat32, 5, 200, true);
  Tensor y(DType::kFloat32, {3, 5});
  Context context;
  layers::linear_forward(kTest, x, p, y, context);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t o = 0; o < 5; ++o) {
      float sum = 0;
      for (std::size_t i = 0; i < 200; ++i) {
        sum = multiply_add(x.values<float>()[r * 200 + i], p.weight.values<float>()[o * 200 + i],
                           sum);
      }
      EXPECT_EQ(y.values<float>()[r * 5 + o], sum + p.bias.values<float>()[o]);
    }
  }
}

TEST(Linear, InputGradientSumsInTheOrderItPromises) {
  const Tensor dy = random_tensor(DType::kFloat32, {3, 200}, 3);
  const LinearParameters p = random_parameters(DType::kFloat32, 200, 5, false);
  Tensor dx(DType::kFloat32, {3, 5});
  Context context;
  layers::linear_backward_input(kTest, dy, p, dx, Write::kOverwrite, context);
  const std::vector<double> once = values_of(dx);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 5; ++i) {
      float sum = 0;
      for (std::size_t o = 0; o < 200; ++o) {
        sum =
            multiply_add(dy.values<float>()[r * 200 + o], p.weight.values<float>()[o * 5 + i], sum);
      }
      EXPECT_EQ(dx.values<float>()[r * 5 + i], sum);
    }
  }
  layers::linear_backward_input(kTest, dy, p, dx, Write::kAccumulate, context);
  std::vector<double> twice;
  for (double value : once) twice.push_back(2 * value);
  EXPECT_TRUE(compare("dx", dx, twice, {}, "accumulated"));
}

// Blocks of 128 rows, each from zero, added in ascending order; one owner for each element, so
// threads change nothing.
TEST(Linear, ParameterGradientsSumRowsInBlocks) {
  constexpr std::size_t kRows = 2 * 128 + 44;
  constexpr std::size_t kIn = 3;
  constexpr std::size_t kOut = 9;
  const Tensor x = random_tensor(DType::kFloat32, {2, kRows / 2, kIn}, 4);
  const Tensor dy = random_tensor(DType::kFloat32, {2, kRows / 2, kOut}, 5);
  for (const int threads : {1, 2, 7}) {
    Context context(Executor::threads(threads));
    LinearParameters d{Tensor(DType::kFloat32, {kOut, kIn}), Tensor(DType::kFloat32, {kOut})};
    layers::linear_backward_parameters(kTest, x, dy, d, Write::kOverwrite, context);
    for (std::size_t o = 0; o < kOut; ++o) {
      const auto slope = [&](std::size_t r) { return dy.values<float>()[r * kOut + o]; };
      float bias = 0;
      for (std::size_t start = 0; start < kRows; start += 128) {
        float block = 0;
        for (std::size_t r = start; r < std::min(kRows, start + 128); ++r) block += slope(r);
        bias += block;
      }
      EXPECT_EQ(d.bias.values<float>()[o], bias) << threads << " threads";
      for (std::size_t i = 0; i < kIn; ++i) {
        float weight = 0;
        for (std::size_t start = 0; start < kRows; start += 128) {
          float block = 0;
          for (std::size_t r = start; r < std::min(kRows, start + 128); ++r) {
            block = multiply_add(slope(r), x.values<float>()[r * kIn + i], block);
          }
          weight += block;
        }
        EXPECT_EQ(d.weight.values<float>()[o * kIn + i], weight) << threads << " threads";
      }
    }
  }
}

TEST(Linear, ARowWithoutGradientAddsNothingEvenWhenItHoldsNan) {
  Tensor x = random_tensor(DType::kFloat64, {4, 3}, 6);
  Tensor dy = random_tensor(DType::kFloat64, {4, 2}, 7);
  for (std::size_t i = 0; i < 3; ++i) x.values<double>()[3 + i] = 0;
  for (std::size_t o = 0; o < 2; ++o) dy.values<double>()[2 + o] = 0;
  Context context;
  const auto weight_gradient = [&] {
    LinearParameters d{Tensor(DType::kFloat64, {2, 3}), {}};
    layers::linear_backward_parameters(kTest, x, dy, d, Write::kOverwrite, context);
    return values_of(d.weight);
  };
  const std::vector<double> want = weight_gradient();
  for (std::size_t i = 0; i < 3; ++i) {
    x.values<double>()[3 + i] = std::numeric_limits<double>::quiet_NaN();
  }
  EXPECT_EQ(weight_gradient(), want);
  // A row that has a gradient shows its NaN.
  dy.values<double>()[2] = 1;
  EXPECT_TRUE(std::isnan(weight_gradient()[0]));
}

}  // namespace
}  // namespace qkv::test
