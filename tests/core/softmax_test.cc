// SPDX-License-Identifier: Apache-2.0
#include "reference/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/softmax.h>
#include <qkv/tensor.h>

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
using test::kReals;
using test::Layout;
using test::values_of;

// Bounds the error of exp(x - max) / sum. In the accumulator, half an ulp of |x - max| <= range
// becomes a relative error of range * eps / 2, twice (in the term and in the sum). The additions
// (64 partial sums of at most count / 64 terms, and their tree), exp and the division err, too.
// Finally the result is rounded to the storage type, where subnormal numbers have an absolute
// error.
Bound softmax_bound(DType dtype, Index count, double range) {
  const test::Rounding rounding = test::rounding_of(dtype);
  const double terms = static_cast<double>(count) / 64 + 6;
  return {(2 * range + terms + 8) * rounding.sum + rounding.stored,
          dtype == DType::kFloat16 ? 0x1p-25 : 1e-37};
}

// Expects that softmax(x, out) writes to `out` what the definition gives in float64, where only the
// first live(row) numbers of each row are unmasked, and that it writes neither to x nor to memory
// around the arrays.
template <class Live, class Softmax>
void expect_definition(const Guarded& x, const Guarded& out, double range, const Live& live,
                       const Softmax& softmax, const std::string& replay) {
  const std::vector<double> before = values_of(x);
  softmax(x, out);
  const Index N = x.view().size(-1);
  std::vector<double> want(before.size());
  for (std::size_t first = 0; first < before.size(); first += static_cast<std::size_t>(N)) {
    const double* from = before.data() + first;
    const auto n = static_cast<std::size_t>(live(first / static_cast<std::size_t>(N)));
    const double max = n == 0 ? 0 : *std::max_element(from, from + n);
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += want[first + j] = std::exp(from[j] - max);
    for (std::size_t j = 0; j < n; ++j) want[first + j] /= sum;
  }
  const Bound bound = softmax_bound(x.view().dtype(), N, range);
  EXPECT_TRUE(compare("out", out, want, bound, replay));
  EXPECT_TRUE(compare("x", x, before, {}, replay)) << "the input was written";
  EXPECT_TRUE(out.intact() && x.intact()) << replay;
}

TEST(Softmax, EqualsItsDefinition) {
  test::Random random(1);
  int cases = 0;
  const auto check = [&](DType dtype, const Dims& shape, Layout from, Layout to, double deviation) {
    Guarded x(dtype, shape, from);
    x.fill_normal(random, deviation);
    expect_definition(
        x, Guarded(dtype, shape, to), 10 * deviation,
        [&](std::size_t) { return shape[shape.rank() - 1]; },
        [](const ConstView& of, const View& out) { softmax(of, out); },
        std::string(name_of(dtype)) + " " + to_string(shape) + " " + std::string(name_of(from)) +
            " to " + std::string(name_of(to)));
    ++cases;
  };
  for (const DType dtype : kReals) {
    for (const Layout from : test::kLayouts) {
      for (const Layout to : test::kOwnLayouts) {
        for (const Dims& shape : {Dims{1}, Dims{9}, Dims{3, 1}, Dims{2, 3, 70}, Dims{2, 1, 2, 5}}) {
          check(dtype, shape, from, to, 4);
        }
      }
    }
  }
  for (const Index N : {63, 64, 65, 511, 512, 513, 1024, 1500, 5000}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      check(dtype, {2, N}, Layout::kOffset, Layout::kSliced, 3);
    }
  }
  EXPECT_EQ(cases, 4 * 6 * 5 * 5 + 9 * 2);
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
  std::vector<int> integers(6);
  EXPECT_EQ(error_of([&] { softmax({}, y); }), "softmax: x is absent");
  EXPECT_EQ(error_of([&] { softmax(x, {}); }), "softmax: out is absent");
  EXPECT_EQ(error_of([&] { softmax(x, wide); }),
            "TypeError: softmax: out must have the dtype of x, got float64 [6] for float32 [6]");
  EXPECT_EQ(error_of([&] { softmax(integers, integers); }),
            "TypeError: softmax: x must be float64, float32, bfloat16 or float16, got int32 [6]");
  EXPECT_EQ(error_of([&] {
              softmax(ConstView(x.data(), {2, 3}), y);
            }),
            "softmax: out must have the shape [2,3], got float32 [6]");
  EXPECT_EQ(error_of([&] { softmax(x, x); }),
            "softmax: out must not share memory with x (out float32 [6], x float32 [6])");
  EXPECT_EQ(error_of([&] { softmax(x, View(y.data(), {6}, {0})); }),
            "softmax: out must not overlap itself, got float32 [6] with "
            "strides [0]");
  EXPECT_EQ(error_of([&] { softmax(ConstView(x.data(), Dims{}), View(y.data(), Dims{})); }),
            "softmax: x must have at least one axis, got float32 []");
}

// ---- masked_softmax -------------------------------------------------------------------------

TEST(MaskedSoftmax, LengthsOfEveryIntegerType) {
  test::Random random(5);
  for (const DType dtype : {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64,
                            DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64}) {
    for (const Dims& shape : {Dims{3}, Dims{3, 4}}) {
      for (const Layout layout : test::kLayouts) {
        Guarded x(DType::kFloat32, {3, 4, 9}, Layout::kSliced);
        Guarded lengths(dtype, shape, layout);
        x.fill_normal(random);
        const std::vector<double> live = values_of(lengths.fill_whole(random, 0, 9));
        expect_definition(
            x, Guarded(DType::kFloat32, {3, 4, 9}, Layout::kPermuted), 10,
            [&](std::size_t row) { return live[shape.rank() == 1 ? row / 4 : row]; },
            [&](const ConstView& of, const View& out) { masked_softmax(of, lengths, out); },
            describe(lengths) + " " + std::string(name_of(layout)));
        EXPECT_TRUE(lengths.intact()) << describe(lengths);
      }
    }
  }
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
  EXPECT_TRUE(compare("out", out, nines, {}, "")) << "an error must not change out";
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
    // After the flag is set, the call may touch about as much of x and out as it processes between
    // two reads of the flag.
    EXPECT_EQ(test::cancelled_midway(x, 17, call), Cancelled("softmax").what());
    EXPECT_EQ(test::cancelled_midway(out, 17, call), Cancelled("softmax").what());
  }
}

}  // namespace
}  // namespace qkv
