// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "tests/attention/bits.h"

// Controls for the tests of equal bits: each has an order of summation that a careless
// implementation could have, in plain loops, and shows that this order changes bits where qkv's
// does not. docs/exactness.md names them.
namespace qkv::test {
namespace {

using Pieces = std::vector<std::pair<Index, Index>>;  // in the order in which they are added

constexpr Index kTq = 40, kTk = 600, kD = 33;

// The order of all sums of a call. Each piece of the keys, or of the queries, is summed from zero,
// and so is each of the `lanes` parts of the channels (part c mod lanes); the sums are then added.
struct Order {
  Pieces keys{{0, kTk}};
  Pieces queries{{0, kTq}};
  Index lanes = 1;
  bool fused = true;
};

struct Sums {
  Tensor out, dq, dk;
};

// One head of attention with arrays [T,D], whose sums have a given order.
class PlainHead {
 public:
  explicit PlainHead(Order order) : order_(std::move(order)) {}

  Sums run() const {
    Sums sums{Tensor(DType::kFloat32, {kTq, kD}), Tensor(DType::kFloat32, {kTq, kD}),
              Tensor(DType::kFloat32, {kTk, kD})};
    std::vector<float> ds(static_cast<std::size_t>(kTq * kTk));
    for (Index i = 0; i < kTq; ++i) row(i, ds.data() + i * kTk, sums);
    for (Index j = 0; j < kTk; ++j) {
      add(order_.queries, row_of(sums.dk, j),
          [&](Index i) { return std::pair(ds[static_cast<std::size_t>(i * kTk + j)], at(q_, i)); });
    }
    return sums;
  }

 private:
  static const float* at(const Tensor& x, Index row) { return x.values<float>().data() + row * kD; }
  static float* row_of(Tensor& x, Index row) { return x.values<float>().data() + row * kD; }

  float plus(float a, float b, float sum) const {
    return order_.fused ? std::fma(a, b, sum) : a * b + sum;
  }

  float dot(const float* a, const float* b) const {
    float sum = 0;
    for (Index lane = 0; lane < order_.lanes; ++lane) {
      float part = 0;
      for (Index c = lane; c < kD; c += order_.lanes) part = plus(a[c], b[c], part);
      sum += part;
    }
    return sum;
  }

  // Computes the sum of weight times row over all pieces; term(n) is the n-th (weight, row).
  template <class Term>
  void add(const Pieces& pieces, float* sum, const Term& term) const {
    std::fill_n(sum, kD, 0.0F);
    for (const auto& [begin, end] : pieces) {
      float part[kD] = {};
      for (Index n = begin; n < end; ++n) {
        const auto [weight, row] = term(n);
        for (Index c = 0; c < kD; ++c) part[c] = plus(weight, row[c], part[c]);
      }
      for (Index c = 0; c < kD; ++c) sum[c] += part[c];
    }
  }

  // Computes out and dq of query i, and the gradients of its scores. 0.174 is about 1/sqrt(kD).
  void row(Index i, float* ds, Sums& sums) const {
    std::vector<float> w(static_cast<std::size_t>(kTk));
    const auto weight = [&](Index j) -> float& { return w[static_cast<std::size_t>(j)]; };
    for (Index j = 0; j < kTk; ++j) weight(j) = dot(at(q_, i), at(k_, j)) * 0.174F;
    const float largest = *std::ranges::max_element(w);
    float sum = 0;
    for (const auto& [begin, end] : order_.keys) {
      float part = 0;
      for (Index j = begin; j < end; ++j) part += weight(j) = std::exp(weight(j) - largest);
      sum += part;
    }
    for (float& x : w) x /= sum;
    add(order_.keys, row_of(sums.out, i), [&](Index j) { return std::pair(weight(j), at(v_, j)); });
    const float delta = dot(at(dout_, i), at(sums.out, i));
    for (Index j = 0; j < kTk; ++j) ds[j] = weight(j) * (dot(at(dout_, i), at(v_, j)) - delta);
    add(order_.keys, row_of(sums.dq, i), [&](Index j) { return std::pair(ds[j], at(k_, j)); });
  }

  Order order_;
  Tensor q_ = normal({kTq, kD}, 1), k_ = normal({kTk, kD}, 2), v_ = normal({kTk, kD}, 3),
         dout_ = normal({kTq, kD}, 4);
};

// `count` pieces of equal sizes.
Pieces shares(Index total, Index count) {
  Pieces pieces;
  for (Index n = 0; n < count; ++n) pieces.emplace_back(total * n / count, total * (n + 1) / count);
  return pieces;
}

// The pieces into which multiples of `size` cut rows first .. first + total - 1 of a buffer,
// counted from row `first`.
Pieces blocks(Index total, Index size, Index first = 0) {
  Pieces pieces;
  for (Index begin = 0; begin < total;) {
    const Index end = std::min(total, (first + begin) / size * size + size - first);
    pieces.emplace_back(begin, end);
    begin = end;
  }
  return pieces;
}

// Expects that each result has the same bits in two runs with order a, and other bits with order b.
void expect_other_bits(const Order& a, const Order& b) {
  const Sums x = PlainHead(a).run(), again = PlainHead(a).run(), y = PlainHead(b).run();
  for (Tensor Sums::*const result : {&Sums::out, &Sums::dq, &Sums::dk}) {
    EXPECT_TRUE(same_bits(x.*result, again.*result));
    EXPECT_FALSE(same_bits(x.*result, y.*result));
  }
}

TEST(OrderControl, ASumOfEachThread) {
  const auto of_threads = [](Index count) {
    return Order{.keys = shares(kTk, count), .queries = shares(kTq, count)};
  };
  expect_other_bits(of_threads(1), of_threads(2));
  expect_other_bits(of_threads(2), of_threads(3));
}

// Work for eight threads: fewer batch entries are divided into more pieces.
TEST(OrderControl, PiecesByTheSizeOfTheBatch) {
  const auto of_batch = [](Index B) {
    return Order{.keys = shares(kTk, 8 / B), .queries = shares(kTq, 8 / B)};
  };
  expect_other_bits(of_batch(1), of_batch(4));
}

TEST(OrderControl, BlocksOfThePackedBuffer) {
  const auto from_row = [](Index first) {
    return Order{.keys = blocks(kTk, 128, first), .queries = blocks(kTq, 128, first)};
  };
  expect_other_bits(from_row(0), from_row(100));
}

TEST(OrderControl, VectorsOfContiguousChannels) { expect_other_bits({.lanes = 8}, {.lanes = 1}); }

// For a single query each thread takes a share of the keys; for many queries keys are in blocks.
TEST(OrderControl, SharesOfTheKeysOfOneQuery) {
  expect_other_bits({.keys = shares(kTk, 8)}, {.keys = blocks(kTk, 512)});
}

TEST(OrderControl, APieceForEachPage) {
  expect_other_bits({.keys = blocks(kTk, 16)}, {.keys = blocks(kTk, 64)});
}

// A ring in which each rank begins with the keys that it has.
TEST(OrderControl, OwnKeysFirst) {
  Order first{.keys = shares(kTk, 4), .queries = shares(kTq, 4)};
  Order second = first;
  for (Pieces* const pieces : {&second.keys, &second.queries}) {
    std::rotate(pieces->begin(), pieces->begin() + 1, pieces->end());
  }
  expect_other_bits(first, second);
}

TEST(OrderControl, FusedOrNot) { expect_other_bits({.fused = true}, {.fused = false}); }

TEST(OrderControl, LanesOfTheWidestVector) { expect_other_bits({.lanes = 4}, {.lanes = 16}); }

}  // namespace
}  // namespace qkv::test
