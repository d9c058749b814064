// SPDX-License-Identifier: Apache-2.0
#include "reference/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "reference/sum.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/stops.h"

namespace qkv {
namespace {

using test::Bound;
using test::compare;
using test::error_of;
using test::Guarded;
using test::Layout;
using test::values_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kReals[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// The definition in double, for rows of `count` of which `live(row)` count.
template <class Live>
std::vector<double> softmax_by_definition(const std::vector<double>& x, Index count,
                                          const Live& live) {
  std::vector<double> out(x.size());
  for (std::size_t row = 0; row * static_cast<std::size_t>(count) < x.size(); ++row) {
    const double* from = x.data() + row * static_cast<std::size_t>(count);
    const auto n = static_cast<std::size_t>(live(row));
    double max = -kInfinity;
    for (std::size_t j = 0; j < n; ++j) max = std::max(max, from[j]);
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += std::exp(from[j] - max);
    for (std::size_t j = 0; j < n; ++j) {
      out[row * static_cast<std::size_t>(count) + j] = std::exp(from[j] - max) / sum;
    }
  }
  return out;
}

// Error of exp(x - max) / sum in the accumulator: half an ulp of |x - max| <= range becomes a
// relative error of range * eps / 2, twice (term and sum), plus the sum's tree (64 partial sums of
// at most count / 64 terms), exp and the division; then one rounding to the storage type, whose
// subnormals have an absolute error.
Bound softmax_bound(DType dtype, Index count, double range) {
  const double accumulator = dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
  const double terms = static_cast<double>(count) / 64 + 6;
  const double storage = dtype == DType::kBFloat16  ? 0x1p-8
                         : dtype == DType::kFloat16 ? 0x1p-11
                                                    : 0;
  return {(2 * range + terms + 8) * accumulator + storage,
          dtype == DType::kFloat16 ? 0x1p-25 : 1e-37};
}

TEST(Softmax, EqualsItsDefinition) {
  test::Random random(1);
  int cases = 0;
  for (const DType dtype : kReals) {
    for (const Layout from : test::kLayouts) {
      for (const Layout to : test::kOwnLayouts) {
        for (const Dims& shape : {Dims{1}, Dims{9}, Dims{3, 1}, Dims{2, 3, 70}, Dims{2, 1, 2, 5}}) {
          Guarded x(dtype, shape, from);
          Guarded out(dtype, shape, to);
          const std::vector<double> before = values_of(x.fill_normal(random, 4));
          softmax(x, out);
          const Index N = shape[shape.rank() - 1];
          const auto want = softmax_by_definition(before, N, [&](std::size_t) { return N; });
          const std::string replay = std::string(name_of(dtype)) + " " + to_string(shape) + " " +
                                     std::string(name_of(from)) + " to " + std::string(name_of(to));
          EXPECT_TRUE(compare("out", out, want, softmax_bound(dtype, N, 40), replay));
          EXPECT_TRUE(compare("x", x, before, {}, replay));
          EXPECT_TRUE(x.intact() && out.intact()) << replay;
          ++cases;
        }
      }
    }
  }
  EXPECT_EQ(cases, 4 * 6 * 5 * 5);
}

TEST(Softmax, LongRows) {
  test::Random random(2);
  for (const Index N : {63, 64, 65, 511, 512, 513, 1024, 1500, 5000}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      Guarded x(dtype, {2, N}, Layout::kOffset);
      Guarded out(dtype, {2, N}, Layout::kSliced);
      x.fill_normal(random, 3);
      softmax(x, out);
      const auto want = softmax_by_definition(values_of(x), N, [&](std::size_t) { return N; });
      EXPECT_TRUE(compare("out", out, want, softmax_bound(dtype, N, 30), std::to_string(N)));
    }
  }
}

TEST(Softmax, TreeSumAddsHalves) {
  test::Random random(4);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int n = 0; n < 100; ++n) {
    float p[64];
    for (float& term : p) term = uniform(random);
    // One level of the tree, with a name for each element.
    const auto level = [](const auto& below, int width) {
      return [&below, width](int t) { return below(t) + below(t + width); };
    };
    const auto leaves = [copy = std::vector<float>(p, p + 64)](int t) {
      return copy[static_cast<std::size_t>(t)];
    };
    const auto p32 = level(leaves, 32);
    const auto p16 = level(p32, 16);
    const auto p8 = level(p16, 8);
    const auto p4 = level(p8, 4);
    const auto p2 = level(p4, 2);
    const auto p1 = level(p2, 1);
    ASSERT_EQ(reference::tree_sum(p), p1(0)) << "seed 4, " << n;
  }
}

TEST(Softmax, AChunkWithoutLiveKeysIsEmpty) {
  const std::vector<float> row(600, -std::numeric_limits<float>::infinity());
  const std::vector<std::uint8_t> live(600, 1);
  const reference::Scores<float> scores{row.data(), live.data(), 600};
  const reference::Softmax<float> chunk = reference::softmax_chunk(scores, 0, 512, {});
  EXPECT_TRUE(chunk.empty);
  EXPECT_EQ(chunk.sum, 0);
  const reference::Softmax<float> state = reference::softmax_row(scores);
  EXPECT_TRUE(state.empty);
  EXPECT_EQ(state.sum, 0);
}

TEST(Softmax, Edges) {
  const auto of = [](std::vector<double> values) {
    std::vector<double> out(values.size());
    softmax(values, out);
    return out;
  };
  EXPECT_EQ(of({-kInfinity, -kInfinity}), (std::vector<double>{0, 0}));
  EXPECT_EQ(of({-kInfinity, 5}), (std::vector<double>{0, 1}));
  EXPECT_EQ(of({1e308, -1e308}), (std::vector<double>{1, 0}));
  EXPECT_EQ(of({7e4, 7e4}), (std::vector<double>{0.5, 0.5}));
  for (const std::vector<double>& row : {std::vector<double>{std::nan(""), 1},
                                         {1, std::nan("")},
                                         {-kInfinity, std::nan("")},
                                         {std::nan(""), -kInfinity},
                                         {kInfinity, 1},
                                         {kInfinity, kInfinity}}) {
    for (const double value : of(row)) EXPECT_TRUE(std::isnan(value));
  }
  // NaN and +inf in another chunk than the rest.
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{700}, std::size_t{1100}}) {
      std::vector<double> row(1101, -kInfinity);
      row[600] = 1;
      row[place] = bad;
      for (const double value : of(row)) ASSERT_TRUE(std::isnan(value)) << bad << " at " << place;
    }
  }
  // Dead chunks before, between and after change nothing.
  std::vector<double> row(2048, -kInfinity);
  row[600] = row[1600] = 3;
  EXPECT_EQ(of(row)[600], 0.5);
  EXPECT_EQ(of(row)[0], 0);
}

TEST(Softmax, EmptyArrays) {
  for (const Dims& shape : {Dims{0}, Dims{3, 0}, Dims{0, 3}, Dims{2, 0, 4}}) {
    const ConstView x(static_cast<const float*>(nullptr), shape);
    const View out(static_cast<float*>(nullptr), shape);
    EXPECT_EQ(error_of([&] { softmax(x, out); }), "");
    if (shape.rank() == 1) continue;
    EXPECT_EQ(error_of([&] { masked_softmax(x, {}, out); }), "");
  }
  std::vector<int> lengths{0, 0, 0};
  EXPECT_EQ(error_of([&] {
              masked_softmax({static_cast<const float*>(nullptr), {3, 0}}, lengths,
                             {static_cast<float*>(nullptr), {3, 0}});
            }),
            "");
}

TEST(Softmax, Refusals) {
  std::vector<float> x(6);
  std::vector<float> y(6);
  std::vector<double> wide(6);
  std::vector<int> whole(6);
  EXPECT_EQ(error_of([&] { softmax({}, y); }), "softmax: x is absent");
  EXPECT_EQ(error_of([&] { softmax(x, {}); }), "softmax: out is absent");
  EXPECT_EQ(error_of([&] { softmax(x, wide); }),
            "TypeError: softmax: out must have the dtype of x, got float64 [6] for float32 [6]");
  EXPECT_EQ(error_of([&] { softmax(whole, whole); }),
            "TypeError: softmax: x must be float64, float32, bfloat16 or float16, got int32 [6]");
  EXPECT_EQ(error_of([&] {
              softmax(ConstView(x.data(), {2, 3}), y);
            }),
            "softmax: out must have the shape [2,3], got float32 [6]");
  EXPECT_EQ(error_of([&] { softmax(x, x); }),
            "softmax: out must not share memory with x (out float32 [6], x float32 [6])");
  EXPECT_EQ(error_of([&] { softmax(x, View(y.data(), {6}, {0})); }),
            "softmax: out must have a place of its own for each element, got float32 [6] with "
            "strides [0]");
  EXPECT_EQ(error_of([&] { softmax(ConstView(x.data(), Dims{}), View(y.data(), Dims{})); }),
            "softmax: x must have at least one axis, got float32 []");
}

// ---- masked_softmax -------------------------------------------------------------------------

template <class Integer>
void check_lengths_of_type(test::Random& random) {
  for (const Dims& lengths_shape : {Dims{3}, Dims{3, 4}}) {
    for (const Layout layout : test::kLayouts) {
      Guarded x(DType::kFloat32, {3, 4, 9}, Layout::kSliced);
      Guarded lengths(dtype_of<Integer>, lengths_shape, layout);
      Guarded out(DType::kFloat32, {3, 4, 9}, Layout::kPermuted);
      x.fill_normal(random);
      lengths.fill_whole(random, 0, 9);
      const std::vector<double> before = values_of(x);
      const std::vector<double> live = values_of(lengths);
      masked_softmax(x, lengths, out);
      const auto want = softmax_by_definition(before, 9, [&](std::size_t row) {
        return live[lengths_shape.rank() == 1 ? row / 4 : row];
      });
      const std::string replay = describe(lengths) + " " + std::string(name_of(layout));
      EXPECT_TRUE(compare("out", out, want, softmax_bound(DType::kFloat32, 9, 10), replay));
      EXPECT_TRUE(compare("x", x, before, {}, replay)) << "the input was written";
      EXPECT_TRUE(out.intact() && x.intact() && lengths.intact()) << replay;
    }
  }
}

TEST(MaskedSoftmax, LengthsOfEveryIntegerType) {
  test::Random random(5);
  check_lengths_of_type<std::int8_t>(random);
  check_lengths_of_type<std::int16_t>(random);
  check_lengths_of_type<std::int32_t>(random);
  check_lengths_of_type<std::int64_t>(random);
  check_lengths_of_type<std::uint8_t>(random);
  check_lengths_of_type<std::uint16_t>(random);
  check_lengths_of_type<std::uint32_t>(random);
  check_lengths_of_type<std::uint64_t>(random);
}

TEST(MaskedSoftmax, EqualsSoftmaxOfTheLivePartBitForBit) {
  test::Random random(6);
  constexpr Index N = 1200;
  for (const DType dtype : kReals) {
    for (const Index live : {1, 64, 511, 512, 513, 1024, 1199, 1200}) {
      Guarded x(dtype, {1, N}, Layout::kSliced);
      x.fill_normal(random, 3);
      Guarded masked(dtype, {1, N}, Layout::kNegative);
      Guarded part(dtype, {1, live}, Layout::kContiguous);
      masked_softmax(x, ConstView(&live, {1}), masked);
      softmax(slice(x.view(), 1, 0, live), part);
      EXPECT_TRUE(compare("live", slice(masked.view(), 1, 0, live), values_of(part), {}, ""));
      EXPECT_TRUE(compare("rest", slice(masked.view(), 1, live, N),
                          std::vector<double>(static_cast<std::size_t>(N - live)), {}, ""));
    }
  }
}

TEST(MaskedSoftmax, WhatIsMaskedCannotMatter) {
  std::vector<float> x{1, 2, std::nanf(""), std::numeric_limits<float>::infinity()};
  std::vector<float> out(4, 9);
  const std::vector<int> lengths{2};
  masked_softmax(ConstView(x.data(), {1, 4}), lengths, View(out.data(), {1, 4}));
  EXPECT_NEAR(out[0], 1 / (1 + std::exp(1.0)), 1e-7);
  EXPECT_EQ(out[2], 0);
  EXPECT_EQ(out[3], 0);
  const std::vector<int> nothing{0};
  masked_softmax(ConstView(x.data(), {1, 4}), nothing, View(out.data(), {1, 4}));
  EXPECT_EQ(out, std::vector<float>(4));
}

TEST(MaskedSoftmax, WithoutLengthsItIsSoftmax) {
  test::Random random(7);
  Guarded x(DType::kFloat32, {2, 3, 5}, Layout::kContiguous);
  Guarded a(DType::kFloat32, {2, 3, 5}, Layout::kContiguous);
  Guarded b(DType::kFloat32, {2, 3, 5}, Layout::kContiguous);
  x.fill_normal(random);
  softmax(x, a);
  masked_softmax(x, {}, b);
  EXPECT_TRUE(compare("masked_softmax", b, values_of(a), {}, ""));
}

TEST(MaskedSoftmax, RefusesLengthsByEntryAndValueBeforeWriting) {
  Guarded x(DType::kFloat32, {2, 2, 4}, Layout::kContiguous);
  Guarded out(DType::kFloat32, {2, 2, 4}, Layout::kContiguous);
  const std::vector<double> nines(16, 9);
  out.fill(nines);
  const auto error = [&](const ConstView& lengths) {
    return error_of([&] { masked_softmax(x, lengths, out); });
  };
  EXPECT_EQ(error(std::vector<int>{2, 5}),
            "masked_softmax: lengths must be in 0 to N = 4, got 5 for batch entry 1 (x float32 "
            "[2,2,4])");
  const std::vector<std::int8_t> per_row{1, 2, -3, 4};
  EXPECT_EQ(error(ConstView(per_row.data(), {2, 2})),
            "masked_softmax: lengths must be in 0 to N = 4, got -3 for batch entry 1, row 0 (x "
            "float32 [2,2,4])");
  EXPECT_EQ(error(std::vector<std::uint64_t>{0, ~std::uint64_t{0}}),
            "masked_softmax: lengths must be in 0 to N = 4, got 18446744073709551615 for batch "
            "entry 1 (x float32 [2,2,4])");
  EXPECT_EQ(error(std::vector<int>{1, 2, 3}),
            "masked_softmax: lengths must have the shape [2] or [2,2], got int32 [3] (x float32 "
            "[2,2,4])");
  EXPECT_EQ(error(std::vector<float>{1, 2}),
            "TypeError: masked_softmax: lengths must be integers, got float32 [2]");
  EXPECT_TRUE(compare("out", out, nines, {}, "")) << "an error must leave out alone";
  std::vector<float> row(4);
  EXPECT_EQ(error_of([&] { masked_softmax(row, {}, row); }),
            "masked_softmax: x must be [B,T,N] or [B,N], got float32 [4]");
}

// ---- with a context -------------------------------------------------------------------------

TEST(Softmax, AContextStopsItAndChangesNoBit) {
  test::Random random(8);
  Guarded x(DType::kFloat32, {2, 2, 9'000}, Layout::kSliced);
  x.fill_normal(random);
  const std::vector<int> lengths{9'000, 700};
  Tensor alone(DType::kFloat32, x.view().shape());
  Tensor out(DType::kFloat32, x.view().shape());
  const auto plain = [&](Context& context) { softmax(x, out, context); };
  const auto masked = [&](Context& context) { masked_softmax(x, lengths, out, context); };
  EXPECT_EQ(test::cancelled_by(true, plain), Cancelled("softmax").what());
  EXPECT_EQ(test::cancelled_by(true, masked), Cancelled("masked_softmax").what());
  softmax(x, alone);
  EXPECT_EQ(test::cancelled_by(false, plain), "");
  EXPECT_TRUE(compare("out", out, values_of(alone), {}, ""));
  masked_softmax(x, lengths, alone);
  EXPECT_EQ(test::cancelled_by(false, masked), "");
  EXPECT_TRUE(compare("out", out, values_of(alone), {}, ""));
}

TEST(Softmax, StopsInTheMidstOfRowsAndOfOneRow) {
  for (const auto& [count, N] :
       std::initializer_list<std::pair<Index, Index>>{{1000, 1000}, {1, 1'000'000}}) {
    test::TouchedArray x(DType::kFloat64, {count, N});
    test::TouchedArray out(DType::kFloat64, {count, N});
    const auto call = [&](Context& context) { softmax(x, out, context); };
    // In inputs and outputs, about as much as is processed between two reads of the flag.
    EXPECT_EQ(test::cancelled_midway(x, 17, call), Cancelled("softmax").what());
    EXPECT_EQ(test::cancelled_midway(out, 17, call), Cancelled("softmax").what());
  }
}

}  // namespace
}  // namespace qkv
