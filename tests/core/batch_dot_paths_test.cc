// SPDX-License-Identifier: Apache-2.0
// Tests batch_dot on every CPU target against plain loops: results are bit-identical where
// multiply-adds are fused, and on every target a row's bits are independent of the rest of the
// call.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"

namespace qkv {
namespace {

using test::Bound;
using test::compare;
using test::context_on;
using test::Guarded;
using test::Layout;
using test::values_of;

constexpr Layout kInputs[] = {Layout::kContiguous, Layout::kPermuted, Layout::kSliced,
                              Layout::kNegative, Layout::kOffset};
constexpr Transpose kBoth[] = {Transpose::kNo, Transpose::kYes};

struct Size {
  Index N, L, M;
};
// Sizes near the limits of the kernels. Rows (N): a tile has 6, and from 48 on, b may be copied
// because of its strides. Terms (L): a piece has 512. Columns (M): a register has 8, a panel 64, a
// block 256. On one thread a block has up to 384 rows: the last two sizes have 3 x 1 and 2 x 2
// blocks (rows x columns).
constexpr Size kSizes[] = {{1, 1, 1},     {5, 3, 7},     {6, 64, 8},    {7, 20, 9},
                           {1, 511, 65},  {47, 33, 64},  {48, 33, 63},  {49, 512, 65},
                           {50, 513, 70}, {193, 40, 30}, {20, 5, 300},  {3, 1030, 2},
                           {100, 0, 3},   {60, 600, 1},  {800, 20, 30}, {400, 10, 300}};

struct Problem {
  Guarded a, b;
  Transpose ta, tb;
  Dims out;
  std::string replay;

  Problem(DType dtype, const Size& s, Transpose turn_a, Transpose turn_b, Layout layout_a,
          Layout layout_b)
      : a(dtype, turn_a == Transpose::kYes ? Dims{2, s.L, s.N} : Dims{2, s.N, s.L}, layout_a),
        b(dtype, turn_b == Transpose::kYes ? Dims{2, s.M, s.L} : Dims{2, s.L, s.M}, layout_b),
        ta(turn_a),
        tb(turn_b),
        out{2, s.N, s.M},
        replay(describe(a) + " " + std::string(name_of(layout_a)) + ", " + describe(b) + " " +
               std::string(name_of(layout_b))) {
    test::Random random(1);
    a.fill_normal(random);
    b.fill_normal(random);
  }
  std::vector<double> product_on(const std::string& path, int threads, Layout layout) const {
    Context context = context_on(path, threads);
    Guarded result(a.view().dtype(), out, layout);
    result.fill(std::vector<double>(static_cast<std::size_t>(element_count(out)), 9));
    batch_dot(a, b, result, ta, tb, context);
    EXPECT_TRUE(result.intact()) << path << " " << replay;
    return values_of(result);
  }
};

// Returns 0 except for SSE4, which also rounds each product: L more roundings, of terms up to 25,
// because numbers stay within five standard deviations.
Bound bound_of(const std::string& path, DType dtype, Index L) {
  if (path != "dot/sse4") return {};
  const auto [sum, stored] = test::rounding_of(dtype);
  const auto l = static_cast<double>(L);
  return {2 * stored, 50 * l * (l + 1) * sum + (stored > 0 ? 0x1p-24 : 0)};
}

TEST(BatchDotPaths, EqualThePlainLoops) {
  constexpr Layout kResults[] = {Layout::kContiguous, Layout::kPermuted, Layout::kNegative};
  int n = 0;
  for (const DType dtype : test::kReals) {
    for (const Size& size : kSizes) {
      for (int transposes = 0; transposes < 4; ++transposes, ++n) {
        if (dtype != DType::kFloat32 && n % 3 != 0) continue;
        // The layouts of a and b run through all combinations.
        const Problem problem(dtype, size, kBoth[transposes / 2], kBoth[transposes % 2],
                              kInputs[n % 5], kInputs[n / 5 % 5]);
        Guarded got(dtype, problem.out, Layout::kContiguous);
        const auto want =
            problem.product_on(std::string(test::kReferencePath), 1, Layout::kContiguous);
        for (const std::string& path : test::paths()) {
          got.fill(problem.product_on(path, 1 + n % 3, kResults[n % 3]));
          ASSERT_TRUE(compare("out", got, want, bound_of(path, dtype, size.L),
                              path + " " + problem.replay));
        }
      }
    }
  }
  EXPECT_EQ(n, 4 * 16 * 4);
}

// On three threads, the call is divided into blocks both by rows and by columns, and has several
// tasks of several blocks each.
TEST(BatchDotPaths, RowsDoNotDependOnTheRestOfTheCall) {
  for (const std::string& path : test::paths()) {
    const Problem problem(DType::kFloat32, {150, 40, 270}, Transpose::kNo, Transpose::kYes,
                          Layout::kContiguous, Layout::kContiguous);
    const std::vector<double> all = problem.product_on(path, 1, Layout::kContiguous);
    EXPECT_EQ(problem.product_on(path, 2, Layout::kContiguous), all) << path;
    EXPECT_EQ(problem.product_on(path, 3, Layout::kSliced), all) << path;
    Context context = context_on(path);
    for (const Index row : {0, 5, 149}) {
      Tensor one(DType::kFloat32, {2, 1, 270});
      batch_dot(slice(problem.a.view(), 1, row, row + 1), problem.b, one, problem.ta, problem.tb,
                context);
      const std::vector<double> got = values_of(one);
      for (std::size_t m = 0; m < 270; ++m) {
        ASSERT_EQ(got[m], all[static_cast<std::size_t>(row) * 270 + m]) << path << " " << row;
      }
    }
  }
}

// All entries share one b, and their rows may be merged into one product.
TEST(BatchDotPaths, ABroadcastMatrixEqualsACopyForEachEntry) {
  test::Random random(2);
  for (const Layout layout : kInputs) {
    Guarded a(DType::kFloat32, {3, 4, 5, 6}, layout);
    Guarded b(DType::kFloat32, {6, 7}, Layout::kContiguous);
    a.fill_normal(random);
    b.fill_normal(random);
    const Tensor copies = contiguous(broadcast_to(b.view(), {3, 4, 6, 7}));
    for (const std::string& path : test::paths()) {
      const std::string replay = path + " " + std::string(name_of(layout));
      Context context = context_on(path);
      Tensor want(DType::kFloat32, {3, 4, 5, 7});
      batch_dot(a, copies, want, Transpose::kNo, Transpose::kNo, context);
      for (const Layout to : test::kOwnLayouts) {
        Guarded out(DType::kFloat32, {3, 4, 5, 7}, to);
        batch_dot(a, b, out, Transpose::kNo, Transpose::kNo, context);
        EXPECT_TRUE(compare("out", out, values_of(want), {}, replay));
        EXPECT_TRUE(out.intact()) << replay;
      }
    }
  }
}

TEST(BatchDotPaths, NanAndInfinityReachTheirRowsAndColumnsOnly) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::string& path : test::paths()) {
    for (const Index N : {3, 70}) {
      Guarded a(DType::kFloat32, {N, 70}, Layout::kContiguous);
      Guarded b(DType::kFloat32, {70, 70}, Layout::kContiguous);
      std::vector<double> ones(static_cast<std::size_t>(N * 70), 1);
      ones[71] = std::nan("");  // in row 1
      ones[2] = 0;              // in row 0, times the infinity
      a.fill(ones);
      ones.assign(70 * 70, 1);
      ones[209] = kInfinity;  // in column 69
      b.fill(ones);
      Tensor out(DType::kFloat32, {N, 70});
      Context context = context_on(path);
      batch_dot(a, b, out, Transpose::kNo, Transpose::kNo, context);
      const std::vector<double> got = values_of(out);
      for (Index n = 0; n < N; ++n) {
        for (Index m = 0; m < 70; ++m) {
          const double value = got[static_cast<std::size_t>(n * 70 + m)];
          if (n == 1 || (n == 0 && m == 69)) {
            ASSERT_TRUE(std::isnan(value)) << path << " " << m;
          } else {
            ASSERT_EQ(value, m == 69  ? kInfinity
                             : n == 0 ? 69
                                      : 70)
                << path << " " << n << " " << m;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv
