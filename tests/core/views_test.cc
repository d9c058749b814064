// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>
#include <qkv/tensor.h>
#include <qkv/view.h>

#include "core/shapes.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv {
namespace {

using test::error_of;

constexpr Index kHuge = Index{1} << 62;
constexpr Index kLowest = std::numeric_limits<Index>::min();

// Returns the numbers 0, 1, 2, ... in C order.
Tensor counting(const Dims& shape) {
  Tensor x(DType::kFloat64, shape);
  double next = 0;
  for (double& value : x.values<double>()) value = next++;
  return x;
}

std::vector<double> iota(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 0.0);
  return values;
}

// ---- errors, shapes -------------------------------------------------------------------------

TEST(Errors, TextAndParts) {
  const Error error("attention", "k", "has D = 64 but q has D = 32", ErrorKind::kType);
  EXPECT_STREQ(error.what(), "attention: k has D = 64 but q has D = 32");
  EXPECT_EQ(error.function(), "attention");
  EXPECT_EQ(error.argument(), "k");
  EXPECT_EQ(error.kind(), ErrorKind::kType);
  EXPECT_STREQ(Error("attention", "", "failed").what(), "attention: failed");
  EXPECT_STREQ(Cancelled("attention").what(), "attention: cancelled by the context's stop flag");
}

TEST(Dims, HoldAtMostEight) {
  Dims dims(1, 2, 3, 4, 5, 6, 7, 8);
  EXPECT_EQ(to_string(dims), "[1,2,3,4,5,6,7,8]");
  EXPECT_EQ(error_of([&] { dims.push_back(9); }),
            "Dims: values must be at most 8 numbers, got [1,2,3,4,5,6,7,8] and then 9");
  const std::vector<Index> nine(9, 1);
  EXPECT_EQ(error_of([&] { Dims{std::span<const Index>(nine)}; }),
            "Dims: values must be at most 8 numbers, got 9");
  EXPECT_EQ(Dims(std::span(nine).first(2)), Dims(1, 1));
  EXPECT_EQ(to_string(Dims{}), "[]");
}

TEST(Shapes, CountsAndStrides) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 4}), 24);
  EXPECT_EQ(element_count({2, 0, 4}), 0);
  EXPECT_EQ(contiguous_strides({2, 3, 4}), Dims(12, 4, 1));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), Dims(4, 4, 1));
  EXPECT_EQ(contiguous_strides({}), Dims());
}

TEST(Shapes, OverflowIsAnError) {
  EXPECT_EQ(element_count({kHuge, 1}), kHuge);
  const std::string rule =
      "shape may have at most 2^63 - 1 elements (sizes of 0 counted as 1), got ";
  EXPECT_EQ(error_of([] {
              element_count({kHuge, 2});
            }),
            "element_count: " + rule + "[4611686018427387904,2]");
  EXPECT_NE(error_of([] { element_count({0, kHuge, 2}); }), "");
  EXPECT_NE(error_of([] { contiguous_strides({kHuge, 4, 0}); }), "");
  EXPECT_EQ(error_of([] {
              element_count({2, -1});
            }),
            "element_count: shape must be 0 or more on each axis, got [2,-1]");
}

TEST(Shapes, Broadcast) {
  EXPECT_EQ(core::broadcast_shapes({2, 1, 4}, {3, 1}), Dims(2, 3, 4));
  EXPECT_EQ(core::broadcast_shapes({}, {3, 1}), Dims(3, 1));
  EXPECT_EQ(core::broadcast_shapes({1}, {0}), Dims(0));
  EXPECT_EQ(core::broadcast_shapes({2}, {0}), std::nullopt);
  EXPECT_EQ(core::broadcast_shapes({2, 4}, {3, 4}), std::nullopt);
}

// ---- views ----------------------------------------------------------------------------------

TEST(Views, RefuseInvalidLayouts) {
  float x[4] = {};
  EXPECT_EQ(error_of([&] {
              View(x, {2, 2}, {1});
            }),
            "View: strides must be one for each axis, got [1] for the shape [2,2]");
  EXPECT_EQ(error_of([&] {
              View(x, {2, -2});
            }),
            "View: shape must be 0 or more on each axis, got [2,-2]");
  EXPECT_EQ(error_of([&] {
              View(x, {2, -2}, {1, 1});
            }),
            "View: shape must be 0 or more on each axis, got [2,-2]");
  EXPECT_EQ(error_of([&] { View(static_cast<float*>(nullptr), {2}); }),
            "View: data is null but the shape [2] has elements");
  EXPECT_EQ(error_of([&] { View(x, DType::kNone, {2}, {1}); }),
            "TypeError: View: dtype must be an element type, got none");
  EXPECT_EQ(error_of([&] { View(reinterpret_cast<char*>(x) + 2, DType::kFloat32, {2}, {1}); }),
            "View: data must be aligned for its elements, got an address that is not aligned for "
            "float32 [2]");
  const std::string reach = "View: strides must reach less than 2^63 bytes, got ";
  EXPECT_EQ(error_of([&] { View(x, {3}, {kHuge}); }),
            reach + "[4611686018427387904] for float32 [3]");
  EXPECT_NE(error_of([&] { View(x, {2}, {kHuge}); }), "") << "the bytes overflow";
  EXPECT_NE(error_of([&] { View(x, {2}, {kLowest}); }), "");
  EXPECT_NE(error_of([&] { View(x, {2, 2}, {kHuge / 4, -kHuge / 4}); }), "");
  EXPECT_EQ(error_of([&] { View(x, {1}, {kLowest}); }), "")
      << "a stride that is never taken may be anything";
  EXPECT_EQ(error_of([&] { View(static_cast<float*>(nullptr), {2, 0}, {kLowest, 1}); }), "");
}

TEST(Views, ElementsByIndex) {
  std::vector<float> x{0, 1, 2, 3, 4, 5};
  const View transposed(x.data(), {3, 2}, {1, 3});
  EXPECT_EQ(transposed.at<float>({2, 1}), 5);
  transposed.at<float>({1, 0}) = 7;
  EXPECT_EQ(x[1], 7);
  const View backwards(x.data() + 5, {6}, {-1});
  EXPECT_EQ(backwards.at<float>({5}), 0);
  EXPECT_EQ(error_of([&] {
              transposed.at<float>({3, 0});
            }),
            "View: index must lie inside the array, got [3,0] for float32 [3,2]");
  EXPECT_NE(error_of([&] { transposed.at<float>({0, -1}); }), "");
  EXPECT_NE(error_of([&] { transposed.at<float>({0}); }), "");
  EXPECT_EQ(error_of([&] { transposed.as<double>(); }),
            "TypeError: View: dtype must be float64 here, got float32 [3,2]");
  EXPECT_EQ(describe(ConstView{}), "absent");
}

TEST(Views, Contiguity) {
  float x[24] = {};
  EXPECT_TRUE(View(x, {2, 3, 4}).is_contiguous());
  EXPECT_TRUE(View(x, {2, 1, 4}, {4, 99, 1}).is_contiguous());
  EXPECT_TRUE(View(x, {1, 1}, {5, 7}).is_contiguous());
  EXPECT_TRUE(View(x, {2, 0}, {5, 7}).is_contiguous());
  EXPECT_FALSE(View(x, {2, 3}, {1, 2}).is_contiguous());
  EXPECT_FALSE(View(x, {2, 3}, {4, 1}).is_contiguous());
  EXPECT_FALSE(View(x, {2}, {0}).is_contiguous());
}

// ---- slice, permute, transpose, broadcast ---------------------------------------------------

TEST(Slice, TakesTheIndicesOfPythonsRange) {
  Tensor x = counting({10});
  const auto taken = [&](Index start, Index stop, Index step) {
    return test::values_of(slice(View(x), 0, start, stop, step));
  };
  EXPECT_EQ(taken(2, 8, 3), (std::vector<double>{2, 5}));
  EXPECT_EQ(taken(2, 9, 3), (std::vector<double>{2, 5, 8}));
  EXPECT_EQ(taken(0, 10, 1), iota(10));
  EXPECT_EQ(taken(9, -1, -1).front(), 9);
  EXPECT_EQ(taken(9, -1, -1).size(), 10U);
  EXPECT_EQ(taken(9, 0, -4), (std::vector<double>{9, 5, 1}));
  EXPECT_EQ(taken(9, 1, -4), (std::vector<double>{9, 5}));
  EXPECT_EQ(taken(4, 4, 1).size(), 0U);
  EXPECT_EQ(taken(8, 2, 1).size(), 0U);
  EXPECT_EQ(taken(2, 8, -1).size(), 0U);
  EXPECT_EQ(taken(10, 10, 1).size(), 0U);
  EXPECT_EQ(taken(3, 4, kHuge), (std::vector<double>{3}));
  EXPECT_EQ(taken(3, 2, kLowest), (std::vector<double>{3}));
}

TEST(Slice, KeepsTheOtherAxes) {
  Tensor x = counting({2, 3, 4});
  const ConstView part = slice(ConstView(x), -2, 2, 0, -1);
  EXPECT_EQ(part.shape(), Dims(2, 2, 4));
  EXPECT_EQ(part.strides(), Dims(12, -4, 1));
  EXPECT_EQ(part.at<double>({1, 1, 3}), 12 + 4 + 3);
  const View empty = slice(View{static_cast<float*>(nullptr), {3, 0}}, 0, 1, 3);
  EXPECT_EQ(empty.shape(), Dims(2, 0));
  EXPECT_EQ(empty.data(), nullptr) << "a null pointer must not be moved";
}

TEST(Slice, RefusesInvalidAxesAndIndices) {
  Tensor x = counting({2, 5});
  const auto error = [&](int axis, Index start, Index stop, Index step) {
    return error_of([&] { slice(View(x), axis, start, stop, step); });
  };
  EXPECT_EQ(error(1, 0, 6, 1), "slice: stop must be in 0 to 5 for axis 1 of float64 [2,5], got 6");
  EXPECT_EQ(error(-1, -1, 3, 1),
            "slice: start must be in 0 to 5 for axis 1 of float64 [2,5], got -1");
  EXPECT_EQ(error(1, 5, 0, -1),
            "slice: start must be in -1 to 4 (negative step) for axis 1 of float64 [2,5], got 5");
  EXPECT_EQ(error(1, 4, -2, -1),
            "slice: stop must be in -1 to 4 (negative step) for axis 1 of float64 [2,5], got -2");
  EXPECT_EQ(error(2, 0, 1, 1), "slice: axis must name an axis of float64 [2,5], got 2");
  EXPECT_EQ(error(0, 0, 1, 0), "slice: step must not be 0");
  EXPECT_EQ(error(0, 0, 1, kHuge),
            "slice: step 4611686018427387904 times the stride 5 does not fit in 64 bits");
  EXPECT_EQ(error_of([] { slice(View{}, 0, 0, 1); }), "slice: view is absent");
}

TEST(Permute, ReordersAxes) {
  Tensor x = counting({2, 3, 4});
  const View y = permute(View(x), {2, 0, -2});
  EXPECT_EQ(y.shape(), Dims(4, 2, 3));
  EXPECT_EQ(y.at<double>({3, 1, 2}), 23);
  EXPECT_EQ(y.strides(), Dims(1, 12, 4));
  EXPECT_EQ(permute(View(counting({})), Dims{}).rank(), 0);
  const std::string rule = "permute: axes must name each axis of float64 [2,3,4] once, got ";
  EXPECT_EQ(error_of([&] { permute(View(x), {0, 1}); }), rule + "[0,1]");
  EXPECT_EQ(error_of([&] { permute(View(x), {0, 1, -2}); }), rule + "[0,1,-2]");
  EXPECT_EQ(error_of([&] {
              permute(View(x), {0, 1, 3});
            }),
            "permute: axes must name an axis of float64 [2,3,4], got 3");
}

TEST(Transpose, SwapsTwoAxes) {
  Tensor x = counting({1, 6, 6});
  EXPECT_EQ(transpose(View(x), 1, 2).strides(), Dims(36, 1, 6));  // as printed in seed 001
  EXPECT_EQ(transpose(ConstView(x), -1, -3).shape(), Dims(6, 6, 1));
  EXPECT_NE(error_of([&] { transpose(View(x), 0, 3); }), "");
}

TEST(BroadcastTo, RepeatsWithStrideZero) {
  Tensor x = counting({3, 1});
  const ConstView y = broadcast_to(x, {2, 3, 4});
  EXPECT_EQ(y.strides(), Dims(0, 1, 0));
  EXPECT_EQ(y.at<double>({1, 2, 3}), 2);
  EXPECT_EQ(broadcast_to(x, {3, 0}).element_count(), 0);
  EXPECT_EQ(broadcast_to(x, {3, 1}).strides(), Dims(1, 1));
  EXPECT_EQ(error_of([&] {
              broadcast_to(x, {2, 4});
            }),
            "broadcast_to: view float64 [3,1] does not broadcast to [2,4]");
  EXPECT_NE(error_of([&] { broadcast_to(x, {3}); }), "");
  EXPECT_NE(error_of([&] { broadcast_to(x, {kHuge, 3, 1}); }), "");
}

// ---- reshape --------------------------------------------------------------------------------

TEST(Reshape, WithoutACopy) {
  Tensor x = counting({2, 3, 4});
  EXPECT_EQ(test::values_of(reshape(View(x), {4, 6})), iota(24));
  EXPECT_EQ(reshape(View(x), {-1}).shape(), Dims(24));
  EXPECT_EQ(reshape(View(x), {1, 2, -1, 1, 2}).shape(), Dims(1, 2, 6, 1, 2));
  EXPECT_EQ(reshape(View(x), {24, -1}).shape(), Dims(24, 1));
  EXPECT_EQ(reshape(View(counting({})), {1, 1}).shape(), Dims(1, 1));
  EXPECT_EQ(reshape(View(counting({1, 1})), Dims{}).rank(), 0);
  // Axes are split into heads, merged again, repeated and reversed by strides alone.
  const View heads = permute(reshape(View(x), {2, 3, 2, 2}), {0, 2, 1, 3});
  EXPECT_EQ(heads.strides(), Dims(12, 2, 4, 1));
  EXPECT_EQ(reshape(permute(heads, {0, 2, 1, 3}), {2, 3, 4}).strides(), Dims(12, 4, 1));
  const ConstView repeated = broadcast_to(reshape(View(x), {24, 1, 1}), {24, 2, 3});
  EXPECT_EQ(reshape(repeated, {24, 6}).strides(), Dims(1, 0));
  const View backwards = slice(reshape(View(x), {24}), 0, 23, -1, -1);
  EXPECT_EQ(reshape(backwards, {6, 4}).strides(), Dims(-4, -1));
}

TEST(Reshape, SaysWhichAxesCannotBeMerged) {
  Tensor x = counting({2, 3, 4});
  const View transposed = permute(View(x), {0, 2, 1});
  EXPECT_EQ(error_of([&] {
              reshape(transposed, {2, 12});
            }),
            "reshape: view needs a copy to reshape float64 [2,4,3] to [2,12], because axes 1 and 2 "
            "(sizes 4 and 3, strides 1 and 4) cannot be merged; call reshape(contiguous(view), "
            "...)");
  EXPECT_EQ(test::values_of(reshape(View(contiguous(transposed)), {2, 12})),
            test::values_of(transposed));
  EXPECT_EQ(reshape(transposed, {2, 2, 2, 3}).strides(), Dims(12, 2, 1, 4));
}

TEST(Reshape, NeedsAsManyElements) {
  Tensor x = counting({2, 6});
  const auto error = [&](const Dims& shape) { return error_of([&] { reshape(View(x), shape); }); };
  EXPECT_EQ(error({5}), "reshape: shape [5] does not hold the 12 elements of float64 [2,6]");
  EXPECT_EQ(error({5, -1}), "reshape: shape [5,-1] does not hold the 12 elements of float64 [2,6]");
  EXPECT_EQ(error({-1, -1}),
            "reshape: shape may hold sizes and one -1, which is inferred, got [-1,-1]");
  EXPECT_NE(error({-2, 6}), "");
  EXPECT_NE(error({kHuge, 4}), "");
  const View empty(static_cast<float*>(nullptr), {2, 0, 3});
  EXPECT_EQ(reshape(empty, {0, 7}).shape(), Dims(0, 7));
  EXPECT_EQ(reshape(empty, {7, -1}).shape(), Dims(7, 0));
  EXPECT_EQ(error_of([&] {
              reshape(empty, {0, -1});
            }),
            "reshape: shape has -1 next to a size of 0, where any size would fit, got [0,-1]");
}

// A reshape of any view either keeps the C order of its elements, or is refused, because one stride
// cannot replace those of axes that must be merged. The reason is not checked here.
TEST(Reshape, RandomViewsKeepTheirOrder) {
  std::mt19937_64 random(1);
  const std::vector<Dims> shapes{{24}, {2, 12}, {4, 6}, {2, 3, 4}, {3, 2, 2, 2}, {1, 24, 1}};
  int reshaped = 0;
  int refused = 0;
  for (int n = 0; n < 3000; ++n) {
    Tensor memory = counting({4, 6, 4, 2});
    View view = slice(View(memory), 0, 0, 4, 1 + static_cast<Index>(random() % 4));
    view = slice(view, 1, 5, 1, -1 - static_cast<Index>(random() % 2));
    view = slice(view, 2, 0, 3);
    if (random() % 2 == 0) view = permute(view, {2, 1, 0, 3});
    if (view.element_count() != 24) continue;
    const std::vector<double> want = test::values_of(view);
    try {
      const View shaped = reshape(view, shapes[random() % shapes.size()]);
      EXPECT_EQ(test::values_of(shaped), want);
      ++reshaped;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(reshaped, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace qkv
