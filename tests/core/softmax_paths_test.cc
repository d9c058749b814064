// SPDX-License-Identifier: Apache-2.0
// Tests that on every CPU target, the results of softmax and masked_softmax have the bits of sums
// in the documented order, and that a row's bits do not depend on the rest of the call.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "core/elementary.h"
#include "kernels/dot_kernels.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"

namespace qkv {
namespace {

using test::compare;
using test::context_on;
using test::Guarded;
using test::Layout;
using test::values_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The arithmetic of a path: its exponential, and whether a * b + c is fused.
struct Arithmetic {
  std::function<float(float)> exp;
  bool fused;

  float multiply_add(float a, float b, float c) const {
    return fused ? std::fma(a, b, c) : a * b + c;
  }
};

Arithmetic arithmetic_of(const std::string& path) {
  for (const kernels::Target target : kernels::kTargets) {
    if (path != "dot/" + std::string(kernels::name_of(target))) continue;
    const auto& kernels = kernels::dot_kernels<float>(target);
    const auto exp = [&kernels](float x) {
      float e = 0;
      kernels.weights(&x, 1, core::kNormalExponent<float>, 0, 1, &e);
      return e;
    };
    return {exp, target != kernels::Target::kSse4};
  }
  return {[](float x) { return core::portable_exp(x); }, true};
}

// Returns the softmax of the N scores s in the order of docs/semantics.md: chunks of 512 keys, each
// with 64 partial sums, which are added as a tree.
std::vector<double> softmax_in_canonical_order(const float* s, int N, const Arithmetic& by) {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
  for (int first = 0; first < N; first += 512) {
    const int last = std::min(N, first + 512);
    const float chunk_max = *std::max_element(s + first, s + last);
    std::vector<float> p(64);
    for (int t = 0; t < 64; ++t) {
      for (int j = first + t; j < last; j += 64) {
        p[static_cast<std::size_t>(t)] += by.exp(s[j] - chunk_max);
      }
    }
    while (p.size() > 1) {
      const std::size_t half = p.size() / 2;
      for (std::size_t t = 0; t < half; ++t) p[t] = p[t] + p[half + t];
      p.resize(half);
    }
    const float common = std::max(max, chunk_max);
    const float factor = first == 0 ? 0 : by.exp(max - common);
    sum = by.multiply_add(sum, factor, p[0] * by.exp(chunk_max - common));
    max = common;
  }
  std::vector<double> out(s, s + N);
  for (double& x : out) x = by.exp(static_cast<float>(x) - max) / sum;
  return out;
}

// All cases but the last have 100 rows, because in a single row another order often rounds to the
// same quotients. Rows of up to one chunk are processed together, longer rows one by one. Several
// threads process a few rows of more than 2^15 numbers in parts.
TEST(SoftmaxPaths, SumInTheCanonicalOrder) {
  struct Case {
    int N, rows;
  };
  for (const std::string& path : test::paths()) {
    const Arithmetic by = arithmetic_of(path);
    for (const auto& [N, rows] : {Case{40, 100}, Case{500, 100}, Case{1100, 100}, {33'000, 2}}) {
      test::Random random(3);
      Guarded x(DType::kFloat32, {rows, N}, Layout::kContiguous);
      Guarded out(DType::kFloat32, {rows, N}, Layout::kNegative);
      x.fill_normal(random, 2);
      Context context = context_on(path, N > 30'000 ? 2 : 1);
      softmax(x, out, context);
      std::vector<double> want;
      for (int row = 0; row < rows; ++row) {
        const auto one = softmax_in_canonical_order(x.view().as<float>() + Index{row} * N, N, by);
        want.insert(want.end(), one.begin(), one.end());
      }
      ASSERT_TRUE(compare("out", out, want, {}, path + ", seed 3, N = " + std::to_string(N)));
    }
  }
}

// Compares calls of all rows, on one and on three threads, with a call for each row, which for
// masked_softmax gets only the row's unmasked numbers. Some rows have NaN or infinities.
void check_rows_alone(const std::string& path, DType dtype, Index rows, Index N, Layout from,
                      Layout to) {
  const std::string replay = path + " " + std::string(name_of(dtype)) + " " + std::to_string(rows) +
                             " x " + std::to_string(N) + " " + std::string(name_of(from)) + " to " +
                             std::string(name_of(to));
  test::Random random(5);
  Guarded x(dtype, {rows, N}, from);
  x.fill_normal(random, 3);
  std::vector<double> values = values_of(x);
  const auto set = [&](Index row, Index j, double value) {
    if (row < rows && j < N) values[static_cast<std::size_t>(row * N + j)] = value;
  };
  for (Index j = 0; j < N; ++j) set(1, j, -kInfinity);
  set(2, N - 1, kNaN);
  set(3, 0, kInfinity);
  for (Index j = 0; j < N / 2; ++j) set(4, j, -kInfinity);
  // The first lengths are at and beside the ends of chunks. Rows 0, 2 and 3 have special values
  // that the lengths mask or do not mask.
  set(0, 0, kNaN);
  Guarded lengths(DType::kInt32, {rows}, Layout::kContiguous);
  std::vector<double> live = values_of(lengths.fill_whole(random, 0, N));
  constexpr std::array<Index, 9> kLengths{0, 1, 64, 511, 512, 513, 1024, 1099, 1100};
  for (std::size_t row = 0; row < std::min(live.size(), kLengths.size()); ++row) {
    live[row] = static_cast<double>(std::min(kLengths[row], N));
  }
  lengths.fill(live);
  x.fill(values);
  for (const int threads : {1, 3}) {
    Context context = context_on(path, threads);
    Context one = context_on(path);
    Guarded whole(dtype, {rows, N}, to);
    Guarded masked(dtype, {rows, N}, to);
    softmax(x, whole, context);
    masked_softmax(x, {}, masked, context);
    ASSERT_TRUE(compare("without lengths", masked, values_of(whole), {}, replay));
    masked_softmax(x, lengths, masked, context);
    for (Index row = 0; row < rows; ++row) {
      const auto length = static_cast<Index>(live[static_cast<std::size_t>(row)]);
      const std::string at = replay + ", " + std::to_string(threads) + " threads, row " +
                             std::to_string(row) + ", length " + std::to_string(length);
      const View x_row = slice(x.view(), 0, row, row + 1);
      Tensor alone(dtype, {1, N});
      softmax(contiguous(x_row), alone, one);
      ASSERT_TRUE(compare("out", slice(whole.view(), 0, row, row + 1), values_of(alone), {}, at));
      Tensor part(dtype, {1, length});
      softmax(contiguous(slice(x_row, 1, 0, length)), part, one);
      std::vector<double> want = values_of(part);
      want.resize(static_cast<std::size_t>(N));
      ASSERT_TRUE(compare("masked", slice(masked.view(), 0, row, row + 1), want, {}, at));
    }
    ASSERT_TRUE(whole.intact() && masked.intact() && x.intact()) << replay;
  }
}

TEST(SoftmaxPaths, RowsDoNotDependOnTheRestOfTheCall) {
  for (const std::string& path : test::paths()) {
    for (const DType dtype : test::kReals) {
      check_rows_alone(path, dtype, 40, 9, Layout::kContiguous, Layout::kContiguous);
      check_rows_alone(path, dtype, 19, 130, Layout::kPermuted, Layout::kSliced);
      check_rows_alone(path, dtype, 9, 512, Layout::kOffset, Layout::kOffset);
      check_rows_alone(path, dtype, 5, 513, Layout::kNegative, Layout::kContiguous);
      check_rows_alone(path, dtype, 9, 1'100, Layout::kContiguous, Layout::kNegative);
    }
    check_rows_alone(path, DType::kFloat32, 5, 33'000, Layout::kContiguous, Layout::kContiguous);
    check_rows_alone(path, DType::kFloat64, 2, 33'000, Layout::kSliced, Layout::kPermuted);
    // The call has several tasks of short rows.
    check_rows_alone(path, DType::kFloat32, 70, 500, Layout::kContiguous, Layout::kContiguous);
  }
}

// Each row has two numbers to test; all others are -inf. The two are in one chunk or in two, some
// of them next to or after chunks that are all -inf.
TEST(SoftmaxPaths, Edges) {
  struct Positions {
    std::size_t N, first, last;
  };
  for (const std::string& path : test::paths()) {
    Context context = context_on(path);
    for (const auto& [N, i, j] :
         {Positions{2, 0, 1}, Positions{700, 0, 699}, Positions{40'000, 0, 39'999},
          Positions{2048, 600, 1600}, Positions{1101, 0, 600}, Positions{1101, 600, 1100}}) {
      const std::string replay = path + ", " + std::to_string(i) + " and " + std::to_string(j);
      const auto of = [&](double first, double last) {
        std::vector<double> row(N, -kInfinity);
        row[i] = first;
        row[j] = last;
        std::vector<double> out(N, 9);
        softmax(row, out, context);
        const auto is_filler = [&](double x) {  // the result of a score of -inf
          return std::isnan(out[j]) ? std::isnan(x) : x == 0;
        };
        EXPECT_GE(std::ranges::count_if(out, is_filler), static_cast<std::ptrdiff_t>(N - 2))
            << replay;
        return std::pair(out[i], out[j]);
      };
      EXPECT_EQ(of(-kInfinity, -kInfinity), std::pair(0.0, 0.0)) << replay;
      EXPECT_EQ(of(-kInfinity, 5), std::pair(0.0, 1.0)) << replay;
      for (const double large : {7e4, 1e308}) {
        EXPECT_EQ(of(large, large), std::pair(0.5, 0.5)) << replay;
        EXPECT_EQ(of(large, -large), std::pair(1.0, 0.0)) << replay;
      }
      for (const double bad : {kNaN, kInfinity}) {
        for (const double other : {-kInfinity, 1.0, bad}) {
          for (const auto& [first, last] : {of(bad, other), of(other, bad)}) {
            EXPECT_TRUE(std::isnan(first) && std::isnan(last)) << replay << " " << bad << other;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qkv
