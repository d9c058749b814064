// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>
#include <qkv/target.h>

#include "layers/linear_products.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/in_blocks.h"

namespace qkv::test {
namespace {

constexpr std::string_view kTest = "linear_test";

// Returns a b + c, rounded once where the CPU target in use has fused multiply-adds.
template <class T>
T multiply_add(T a, T b, T c) {
  static const bool fused = cpu_target() != "sse4";
  return fused ? std::fma(a, b, c) : a * b + c;
}

LinearParameters random_parameters(DType dtype, Index out, Index in, bool bias) {
  return {random_tensor(dtype, {out, in}, 1), bias ? random_tensor(dtype, {out}, 2) : Tensor()};
}

// Rows x [R,I], w [O,I] and b [O] (or empty) as doubles, and y = x w^T + b with plain sums.
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

// The order of sums is part of the semantics: ascending, in blocks, fused except on SSE4.
TEST(Linear, ForwardSumsInTheOrderItPromises) {
  const Tensor x = random_tensor(DType::kFloat32, {3, 200}, 3);
  const LinearParameters p = random_parameters(DType::kFloat32, 5, 200, true);
  Tensor y(DType::kFloat32, {3, 5});
  Context context;
  layers::linear_forward(kTest, x, p, y, context);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t o = 0; o < 5; ++o) {
      const float* const row = x.values<float>().data() + r * 200;
      const float* const weights = p.weight.values<float>().data() + o * 200;
      const auto sum = sum_in_blocks<float>(
          200, [&](Index i, float so_far) { return multiply_add(row[i], weights[i], so_far); });
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
      const float* const row = dy.values<float>().data() + r * 200;
      const float* const weights = p.weight.values<float>().data() + i;
      const auto sum = sum_in_blocks<float>(
          200, [&](Index o, float so_far) { return multiply_add(row[o], weights[o * 5], so_far); });
      EXPECT_EQ(dx.values<float>()[r * 5 + i], sum);
    }
  }
  layers::linear_backward_input(kTest, dy, p, dx, Write::kAccumulate, context);
  std::vector<double> twice;
  for (double value : once) twice.push_back(2 * value);
  EXPECT_TRUE(compare("dx", dx, twice, {}, "accumulated"));
}

// Blocks of 128 rows, each summed from zero, are added in ascending order. One task computes each
// element, so threads change nothing.
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
      const auto dy_at = [&](std::size_t r) { return dy.values<float>()[r * kOut + o]; };
      float bias = 0;
      for (std::size_t start = 0; start < kRows; start += 128) {
        float block = 0;
        for (std::size_t r = start; r < std::min(kRows, start + 128); ++r) block += dy_at(r);
        bias += block;
      }
      EXPECT_EQ(d.bias.values<float>()[o], bias) << threads << " threads";
      for (std::size_t i = 0; i < kIn; ++i) {
        float weight = 0;
        for (std::size_t start = 0; start < kRows; start += 128) {
          float block = 0;
          for (std::size_t r = start; r < std::min(kRows, start + 128); ++r) {
            block = multiply_add(dy_at(r), x.values<float>()[r * kIn + i], block);
          }
          weight += block;
        }
        EXPECT_EQ(d.weight.values<float>()[o * kIn + i], weight) << threads << " threads";
      }
    }
  }
}

// The inputs of a layer of `size`, {rows, in, out}, and its results, which run() overwrites.
struct Pass {
  LinearParameters p;
  Tensor x, dy, y, dx;
  LinearParameters d;

  Pass(DType dtype, const Dims& size)
      : p(random_parameters(dtype, size[2], size[1], true)),
        x(random_tensor(dtype, {size[0], size[1]}, 8)),
        dy(random_tensor(dtype, {size[0], size[2]}, 9)),
        y(dtype, dy.shape()),
        dx(dtype, x.shape()),
        d{Tensor(dtype, p.weight.shape()), Tensor(dtype, p.bias.shape())} {}
  void run(Context& context) {
    layers::linear_forward(kTest, x, p, y, context);
    layers::linear_backward_input(kTest, dy, p, dx, Write::kOverwrite, context);
    layers::linear_backward_parameters(kTest, x, dy, d, Write::kOverwrite, context);
  }
};

// A matrix of numbers of T, row-major.
template <class T>
struct Matrix {
  std::span<T> values;
  std::size_t columns;
  explicit Matrix(Tensor& tensor)
      : values(tensor.values<T>()), columns(static_cast<std::size_t>(tensor.size(-1))) {}
  T& at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
  std::size_t rows() const { return values.size() / columns; }
};

// Computes the expected results of run(), in the order of linear_products.h.
template <class T>
void run_plainly(Pass& pass) {
  const Matrix<T> x(pass.x), w(pass.p.weight), b(pass.p.bias), dy(pass.dy), y(pass.y), dx(pass.dx);
  const Matrix<T> dw(pass.d.weight), db(pass.d.bias);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t o = 0; o < y.columns; ++o) {
      const T sum = sum_in_blocks<T>(static_cast<Index>(x.columns), [&](Index n, T so_far) {
        const auto i = static_cast<std::size_t>(n);
        return multiply_add(x.at(r, i), w.at(o, i), so_far);
      });
      y.at(r, o) = sum + b.at(0, o);
    }
    for (std::size_t i = 0; i < x.columns; ++i) {
      dx.at(r, i) = sum_in_blocks<T>(static_cast<Index>(y.columns), [&](Index n, T so_far) {
        const auto o = static_cast<std::size_t>(n);
        return multiply_add(dy.at(r, o), w.at(o, i), so_far);
      });
    }
  }
  for (std::size_t start = 0; start < x.rows(); start += 128) {
    const std::size_t end = std::min(x.rows(), start + 128);
    for (std::size_t o = 0; o < y.columns; ++o) {
      T bias = 0;
      for (std::size_t r = start; r < end; ++r) bias += dy.at(r, o);
      db.at(0, o) += bias;
      for (std::size_t i = 0; i < x.columns; ++i) {
        T sum = 0;
        for (std::size_t r = start; r < end; ++r) {
          sum = multiply_add(dy.at(r, o), x.at(r, i), sum);
        }
        dw.at(o, i) += sum;
      }
    }
  }
}

// The sizes give few rows and many, whole panels and parts, sums longer than a tile processes at
// once, one task and several. Results are always bit-identical to plain loops.
TEST(Linear, AnySizeOnAnyThreadsHasTheBitsOfPlainLoops) {
  const Dims sizes[] = {{7, 64, 128},    {50, 70, 130}, {60, 24, 530},  {60, 64, 530},
                        {7, 1030, 66},   {195, 9, 70},  {300, 8, 1030}, {140, 70, 200},
                        {300, 128, 128}, {300, 140, 48}};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const Dims& size : sizes) {
      Pass want(dtype, size);
      dtype == DType::kFloat64 ? run_plainly<double>(want) : run_plainly<float>(want);
      for (const int threads : {1, 3}) {
        Context context(Executor::threads(threads));
        Pass got(dtype, size);
        got.run(context);
        const std::string replay = to_string(size) + ", " + std::string(name_of(dtype)) + ", " +
                                   std::to_string(threads) + " threads";
        EXPECT_TRUE(bytes_of(got.y) == bytes_of(want.y)) << "y " << replay;
        EXPECT_TRUE(bytes_of(got.dx) == bytes_of(want.dx)) << "dx " << replay;
        EXPECT_TRUE(bytes_of(got.d.weight) == bytes_of(want.d.weight)) << "dW " << replay;
        EXPECT_TRUE(bytes_of(got.d.bias) == bytes_of(want.d.bias)) << "db " << replay;
      }
    }
  }
}

// x has a NaN in row 5, then also in row 139, in the next block; dy is 0 in both rows. Sizes and
// threads give one task, tasks that share their checks of x, and more and fewer rows than columns
// of dy.
TEST(Linear, BlocksWithNanAreSummedAsThoseWithout) {
  for (const Dims& size : {Dims{140, 70, 200}, Dims{300, 70, 64}, Dims{300, 128, 128}}) {
    for (const int threads : {1, 3}) {
      Context context(Executor::threads(threads));
      Pass pass(DType::kFloat32, size);
      for (const Index row : {Index{5}, Index{139}}) {
        copy(Tensor(DType::kFloat32, {1, size[2]}), slice(pass.dy, 0, row, row + 1));
      }
      pass.run(context);
      const std::vector<std::uint8_t> want = bytes_of(pass.d.weight);
      for (const Index row : {5, 139}) {
        pass.x.values<float>()[static_cast<std::size_t>(row * size[1] + 3)] =
            std::numeric_limits<float>::quiet_NaN();
        pass.run(context);
        EXPECT_TRUE(bytes_of(pass.d.weight) == want)
            << to_string(size) << ", " << threads << " threads";
      }
    }
  }
}

// The first block is added to 0, as the others are to the earlier sums, so no sum is -0.
TEST(Linear, AGradientThatUnderflowsIsZeroWithoutSign) {
  Context context;
  Pass pass(DType::kFloat32, {130, 70, 64});
  std::ranges::fill(pass.x.values<float>(), 1e-30F);
  std::ranges::fill(pass.dy.values<float>(), -1e-30F);
  pass.run(context);
  for (const float x : pass.d.weight.values<float>()) ASSERT_FALSE(std::signbit(x));
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
  // A row with a gradient shows its NaN.
  dy.values<double>()[2] = 1;
  EXPECT_TRUE(std::isnan(weight_gradient()[0]));
}

}  // namespace
}  // namespace qkv::test
