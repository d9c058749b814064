// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "core/shapes.h"
#include "core/storage.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/in_blocks.h"
#include "tests/support/stops.h"

namespace qkv {
namespace {

using test::Bound;
using test::compare;
using test::error_of;
using test::Guarded;
using test::kReals;
using test::Layout;
using test::sum_in_blocks;

double element(const ConstView& view, const Dims& index) {
  Index offset = 0;
  for (int axis = 0; axis < view.rank(); ++axis) offset += index[axis] * view.stride(axis);
  return core::load<double>(view.dtype(), view.data(), offset);
}

// Returns the index into an operand for one element of the result: leading axes are aligned from
// the right, with 0 along axes of size 1, and (row, column) are swapped if the operand is
// transposed.
Dims operand_index(const ConstView& view, const Dims& out_index, Index row, Index col,
                   Transpose transposed) {
  Dims index = view.shape();
  const int missing = out_index.rank() - view.rank();
  for (int axis = 0; axis < view.rank() - 2; ++axis) {
    index[axis] = view.size(axis) == 1 ? 0 : out_index[axis + missing];
  }
  const bool swapped = transposed == Transpose::kYes;
  index[view.rank() - 2] = swapped ? col : row;
  index[view.rank() - 1] = swapped ? row : col;
  return index;
}

// Computes the product in float64 by its definition, with the index of each factor from
// operand_index().
std::vector<double> by_definition(const ConstView& a, const ConstView& b, const Dims& out_shape,
                                  Index L, Transpose ta, Transpose tb) {
  std::vector<double> out;
  core::for_each_offset<1>(out_shape, {contiguous_strides(out_shape)},
                           [&](const auto&, const Dims& at) {
                             const Index n = at[at.rank() - 2];
                             const Index m = at[at.rank() - 1];
                             double sum = 0;
                             for (Index l = 0; l < L; ++l) {
                               sum += element(a, operand_index(a, at, n, l, ta)) *
                                      element(b, operand_index(b, at, l, m, tb));
                             }
                             out.push_back(sum);
                           });
  return out;
}

struct Case {
  Dims a_lead;
  Dims b_lead;
  Dims out_lead;
  Index N;
  Index L;
  Index M;
};

const std::vector<Case> kCases{
    {{}, {}, {}, 1, 1, 1},    {{}, {}, {}, 3, 4, 5},
    {{2}, {2}, {2}, 3, 2, 4}, {{2}, {}, {2}, 2, 3, 2},
    {{}, {3}, {3}, 2, 3, 2},  {{2, 1}, {3}, {2, 3}, 2, 3, 4},
    {{1}, {3}, {3}, 2, 5, 1}, {{2, 3}, {2, 3}, {2, 3}, 1, 7, 2},
    {{2}, {2}, {2}, 0, 3, 2}, {{2}, {2}, {2}, 3, 0, 2},
    {{0}, {1}, {0}, 3, 2, 2}, {{3, 1, 2}, {1, 2, 1}, {3, 2, 2}, 2, 3, 2},
};

Dims shape_of(const Dims& lead, Index rows, Index cols, Transpose transposed = Transpose::kNo) {
  Dims shape = lead;
  shape.push_back(transposed == Transpose::kYes ? cols : rows);
  shape.push_back(transposed == Transpose::kYes ? rows : cols);
  return shape;
}

// Bounds the error of L fused multiply-adds, whose factors are at most 5 (five deviations): L
// roundings of sums up to 25 L, and one rounding to the storage type.
Bound product_bound(DType dtype, Index L) {
  const auto [sum, stored] = test::rounding_of(dtype);
  const auto l = static_cast<double>(L);
  return {stored + sum, 25 * l * l * sum + (stored > 0 ? 0x1p-25 : 0)};
}

void check_case(DType dtype, const Case& c, Layout a_layout, Layout b_layout, Layout out_layout,
                Transpose ta, Transpose tb, test::Random& random) {
  Guarded a(dtype, shape_of(c.a_lead, c.N, c.L, ta), a_layout);
  Guarded b(dtype, shape_of(c.b_lead, c.L, c.M, tb), b_layout);
  const Dims out_shape = shape_of(c.out_lead, c.N, c.M);
  Guarded out(dtype, out_shape, out_layout);
  a.fill_normal(random);
  b.fill_normal(random);
  out.fill(std::vector<double>(static_cast<std::size_t>(out.view().element_count()), 9));
  batch_dot(a, b, out, ta, tb);
  const std::string replay =
      describe(a) + " " + std::string(name_of(a_layout)) + ", " + describe(b) + " " +
      std::string(name_of(b_layout)) + ", out " + std::string(name_of(out_layout)) +
      (ta == Transpose::kYes ? " a^T" : "") + (tb == Transpose::kYes ? " b^T" : "");
  const std::vector<double> want = by_definition(a, b, out_shape, c.L, ta, tb);
  EXPECT_TRUE(compare("out", out, want, product_bound(dtype, c.L), replay));
  EXPECT_TRUE(a.intact() && b.intact() && out.intact()) << replay;
}

TEST(BatchDot, EqualsItsDefinition) {
  test::Random random(1);
  int cases = 0;
  for (const DType dtype : kReals) {
    for (const Case& c : kCases) {
      for (const Layout layout : test::kLayouts) {
        for (const Layout other : {Layout::kContiguous, Layout::kNegative, Layout::kSliced}) {
          for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
            for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
              check_case(dtype, c, layout, other, Layout::kPermuted, ta, tb, random);
              check_case(dtype, c, other, layout, Layout::kSliced, ta, tb, random);
              cases += 2;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 4 * 12 * 6 * 3 * 4 * 2);
}

template <class T>
void check_order(Index L) {
  test::Random random(3);
  Guarded a(dtype_of<T>, {1, L}, Layout::kSliced);
  Guarded b(dtype_of<T>, {L, 1}, Layout::kNegative);
  a.fill_normal(random);
  b.fill_normal(random);
  const auto plus = [&](Index l, T sum) {
    return std::fma(a.view().at<T>({0, l}), b.view().at<T>({l, 0}), sum);
  };
  const T fused = sum_in_blocks<T>(L, plus);
  const T rounded_twice = sum_in_blocks<T>(L, [&](Index l, T sum) {
    return sum + a.view().at<T>({0, l}) * b.view().at<T>({l, 0});
  });
  const T descending = sum_in_blocks<T>(L, [&](Index l, T sum) { return plus(L - 1 - l, sum); });
  T one_chain = 0;
  for (Index l = 0; l < L; ++l) one_chain = plus(l, one_chain);
  for (const T other : {rounded_twice, descending, one_chain}) {
    ASSERT_NE(fused, other) << "the case cannot tell the two apart";
  }
  Tensor out(dtype_of<T>, {1, 1});
  batch_dot(a, b, out);
  EXPECT_EQ(out.values<T>()[0], fused);
}

TEST(BatchDot, IsFusedMultiplyAddsOverBlocksOfAscendingL) {
  // The longer sum has many blocks of 64 terms, between which the stop flag is read, and its length
  // is not a multiple of 64.
  for (const Index L : {300, 30'000}) {
    check_order<float>(L);
    check_order<double>(L);
  }
}

TEST(BatchDot, NarrowTypesAccumulateInFloat32AndRoundOnce) {
  // 257 is not a bfloat16: a sum in bfloat16 would stay at 256.
  const std::vector<BFloat16> ones(300, BFloat16(1));
  Tensor out(DType::kBFloat16, {1, 1});
  batch_dot(ConstView(ones.data(), {1, 300}), ConstView(ones.data(), {300, 1}), out);
  EXPECT_EQ(static_cast<float>(out.values<BFloat16>()[0]), 300);
}

TEST(BatchDot, NoTermsGiveZero) {
  std::vector<float> out(24, 9);
  batch_dot({static_cast<const float*>(nullptr), {2, 3, 0}},
            {static_cast<const float*>(nullptr), {2, 0, 4}}, View(out.data(), {2, 3, 4}));
  EXPECT_EQ(out, std::vector<float>(24));
}

TEST(BatchDot, Refusals) {
  Tensor a(DType::kFloat32, {2, 3, 4});
  Tensor b(DType::kFloat32, {2, 4, 5});
  Tensor out(DType::kFloat32, {2, 3, 5});
  Tensor wide(DType::kFloat64, {2, 4, 5});
  Tensor three(DType::kFloat32, {3, 4, 5});
  Tensor vector(DType::kFloat32, {4});
  Tensor square(DType::kFloat32, {3, 3});
  const auto error = [](const ConstView& x, const ConstView& y, const View& z,
                        Transpose ta = Transpose::kNo, Transpose tb = Transpose::kNo) {
    return error_of([&] { batch_dot(x, y, z, ta, tb); });
  };
  EXPECT_EQ(error(a, b, out), "");
  EXPECT_EQ(error({}, b, out), "batch_dot: a is absent");
  EXPECT_EQ(error(a, {}, out), "batch_dot: b is absent");
  EXPECT_EQ(error(a, b, {}), "batch_dot: out is absent");
  EXPECT_EQ(error(a, b, out, Transpose::kYes),
            "batch_dot: b has L = 4 but a has L = 3 (after transposing: a float32 [2,4,3], b "
            "float32 [2,4,5])");
  EXPECT_EQ(error(a, three, out),
            "batch_dot: b has leading axes that do not broadcast with those of a (after "
            "transposing: a float32 [2,3,4], b float32 [3,4,5])");
  EXPECT_EQ(error(a, b, a), "batch_dot: out must have the shape [2,3,5], got float32 [2,3,4]");
  EXPECT_EQ(error(a, wide, out),
            "TypeError: batch_dot: b must have the dtype of a, got float64 [2,4,5] for float32 "
            "[2,3,4]");
  EXPECT_EQ(error(vector, b, out), "batch_dot: a must have at least two axes, got float32 [4]");
  EXPECT_EQ(error(square, Tensor(DType::kFloat32, {3, 3}), square),
            "batch_dot: out must not share memory with a (out float32 [3,3], a float32 [3,3])");
  Tensor integers(DType::kInt32, {2, 2});
  EXPECT_EQ(error(integers, integers, integers),
            "TypeError: batch_dot: a must be float64, float32, bfloat16 or float16, got int32 "
            "[2,2]");
}

TEST(BatchDot, InterleavedOperandsOfOneBuffer) {
  // q, k and the result are slices of one buffer.
  test::Random random(3);
  Guarded buffer(DType::kFloat32, {2, 3, 9}, Layout::kContiguous);
  buffer.fill_normal(random);
  const View q = slice(buffer.view(), 2, 0, 3);
  const View k = slice(buffer.view(), 2, 3, 6);
  const View out = slice(buffer.view(), 2, 6, 9);
  const auto want = by_definition(q, k, {2, 3, 3}, 3, Transpose::kNo, Transpose::kYes);
  batch_dot(q, k, out, Transpose::kNo, Transpose::kYes);
  EXPECT_TRUE(compare("out", out, want, product_bound(DType::kFloat32, 3), ""));
}

TEST(BatchDot, AContextStopsItAndChangesNoBit) {
  test::Random random(4);
  Guarded a(DType::kFloat32, {2, 3, 4}, Layout::kSliced);
  Guarded b(DType::kFloat32, {4, 5}, Layout::kContiguous);
  a.fill_normal(random);
  b.fill_normal(random);
  Tensor alone(DType::kFloat32, {2, 3, 5});
  Tensor out(DType::kFloat32, {2, 3, 5});
  batch_dot(a, b, alone);
  const auto call = [&](Context& context) {
    batch_dot(a, b, out, Transpose::kNo, Transpose::kNo, context);
  };
  EXPECT_EQ(test::cancelled_by(true, call), Cancelled("batch_dot").what());
  EXPECT_EQ(test::cancelled_by(false, call), "");
  EXPECT_TRUE(compare("out", out, test::values_of(alone), {}, ""));
}

TEST(BatchDot, StopsInTheMidstOfRowsAndOfOneSum) {
  struct Product {
    Product(Index N, Index L, Index M)
        : a(DType::kFloat32, {N, L}), b(DType::kFloat32, {L, M}), out(DType::kFloat32, {N, M}) {}
    void operator()(Context& context) const {
      batch_dot(a, b, out, Transpose::kNo, Transpose::kNo, context);
    }
    test::TouchedArray a, b, out;
  };
  // The flag is read between blocks of rows, and the call may finish a block that it has begun. A
  // block is 366 rows of `out`, 29 KB. The watched half of `out` starts within a block, whose other
  // rows are on 4 pages.
  Product rows(4000, 1000, 20);
  EXPECT_EQ(test::cancelled_midway(rows.out, 5, rows), Cancelled("batch_dot").what());
  // Between two reads of the flag, a plain loop takes 8192 terms, the bytes of 8 pages. These may
  // lie on 9 pages, since the first term need not be at the start of a page.
  Product sum(1, 1'000'000, 1);
  EXPECT_EQ(test::cancelled_midway(sum.a, 9, sum), Cancelled("batch_dot").what());
}

}  // namespace
}  // namespace qkv
