// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "tests/attention/bits.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// The order of summation is part of the definition, on every path: a query's bits do not depend on
// threads, on its neighbours, on memory layout, on masked values or on other requested results.
// Sizes are on both sides of kernel block edges: rows of a tile (6) and of a block (48), panels (64
// keys), chunks (512).
namespace qkv::test {
namespace {

constexpr Index kLengths[] = {1, 63, 64, 65, 511, 512, 513, 1024, 1030};

// The results that every row has.
struct RowsOut {
  Tensor out, lse, row_max;
};

void expect_same(const RowsOut& a, const RowsOut& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << what;
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << what;
  EXPECT_TRUE(same_bits(a.row_max, b.row_max)) << what;
}

// Rows i0 .. i1-1 of heads h0 .. h1-1 of a [B,H,T(,C)] result.
ConstView cut(const Tensor& x, Index h0, Index h1, Index i0, Index i1) {
  return slice(slice(x.view(), 1, h0, h1), 2, i0, i1);
}

// One setting of a test: a path, a score that it supports, and a dtype.
struct Walk {
  std::string path;
  ScoreKind kind;
  DType dtype;

  // The score's parameters for queries and keys of this width; units on both sides of a chunk, and
  // some of the exponentials beyond what is stored whole.
  SeededScore score(Index H, Index width) const {
    return SeededScore(kind, {.H = H, .Dq = width, .Dk = width, .U = 33, .projected = 10}, dtype);
  }
};

// An [B,H,T,C] call on one path.
class Runner {
 public:
  Runner(const Walk& walk, const Score& score, Executor executor = {})
      : score_(score), context_(std::move(executor)) {
    context_.force_path(walk.path);
  }
  RowsOut operator()(const Inputs& inputs, Options options, Outputs more = {}) {
    if (std::holds_alternative<ScaledDot>(options.score)) options.score = score_;
    const ConstView& q = inputs.q;
    const DType sums = accumulator_of(q.dtype());
    const Dims rows{q.size(0), q.size(1), q.size(2)};
    RowsOut r{Tensor(q.dtype(), {q.size(0), q.size(1), q.size(2), inputs.v.size(3)}),
              Tensor(sums, rows), Tensor(sums, rows)};
    more.out = r.out;
    more.lse = r.lse;
    more.row_max = r.row_max;
    attention(inputs, options, more, context_);
    return r;
  }

 private:
  Score score_;  // of calls that give none
  Context context_;
};

// Calls test(walk) for every path and score, for float32 and, in fast builds, float64; only once
// for the reference, whose loops are the same for every score, and for float64 on all paths. Slow
// builds have one path for the other scores. avx512bf16, and the reference that has its products,
// only for the dot products of bfloat16.
template <class F>
void for_each_path(const F& test) {
  for (const std::string& path : fast_paths(ScoreKind::kDot, DType::kBFloat16)) {
    if (!is_of_pairs(path)) continue;
    for (const std::string& of_pairs : {path, std::string(kPairedReferencePath)}) {
      if (is_brief() && of_pairs != path) continue;
      SCOPED_TRACE(of_pairs + ", bfloat16");
      test(Walk{of_pairs, ScoreKind::kDot, DType::kBFloat16});
    }
  }
  for (const ScoreKind kind : kScoreKinds) {
    const bool first = kind == ScoreKind::kDot;
    const std::vector<std::string> paths = first ? all_paths() : fast_paths(kind);
    for (const std::string& path : paths) {
      for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
        const bool again = !first && path != paths.front();
        if (dtype == DType::kFloat64 && (is_brief() || again)) continue;
        if (is_brief() && again) continue;
        SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
        test(Walk{path, kind, dtype});
      }
    }
  }
}

// A user's parallel_for that starts a thread for each body, in reverse order.
void backwards_in_threads(void*, Index count, Executor::Body body, void* state) {
  std::vector<std::thread> threads;
  for (Index n = count - 1; n >= 0; --n) threads.emplace_back([=] { body(state, n); });
  for (std::thread& thread : threads) thread.join();
}

TEST(PathOrder, SameBitsForAnyNumberOfThreads) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const Tensor q = normal({2, 4, 101, 17}, 1, d);
    const Tensor k = normal({2, 2, 1030, 17}, 2, d);
    const Tensor v = normal({2, 2, 1030, 9}, 3, d);
    const Tensor bias = normal({4, 1, 1030}, 4, d);
    const std::vector<Index> lengths{1030, 513};
    const Options options{.softcap = 5,
                          .bias = bias,
                          .masks = {Window{1000, -1}, KeyLengths{lengths}},
                          .dropout = {0.1, 7}};
    const SeededScore score = walk.score(4, 17);
    const auto run = [&](Executor executor) {
      std::vector<Tensor> more;
      more.emplace_back(accumulator_of(d), Dims{2, 4, 1030});
      more.emplace_back(accumulator_of(d), Dims{2, 4, 3, 1030});
      more.emplace_back(accumulator_of(d), Dims{2, 4, 101, 5});
      more.emplace_back(DType::kInt32, Dims{2, 4, 101, 5});
      more.emplace_back(accumulator_of(d), Dims{2, 4, 101});
      more.emplace_back(accumulator_of(d), Dims{2, 4, 1030});
      more.emplace_back(accumulator_of(d), Dims{2, 4, 3, 7});
      const std::vector<Index> rows{100, 0, 48};
      RowsOut r =
          Runner(walk, score.score(), std::move(executor))({q, k, v}, options,
                                                           {.entropy = more[4],
                                                            .column_sums = more[0],
                                                            .value_sums = more[5],
                                                            .pooled = more[6],
                                                            .top = {5, more[2], more[3]},
                                                            .dropped_weights = {rows, more[1]}});
      return std::pair(std::move(r), std::move(more));
    };
    const auto one = run({});
    const auto check = [&](Executor executor, const std::string& what) {
      const auto other = run(std::move(executor));
      expect_same(one.first, other.first, what);
      for (std::size_t n = 0; n < one.second.size(); ++n) {
        EXPECT_TRUE(same_bits(one.second[n], other.second[n])) << what << ", result " << n;
      }
    };
    check(Executor::threads(2), "2 threads");
    check(Executor::threads(7), "7 threads");
    check(Executor{&backwards_in_threads, nullptr, 3}, "caller's executor");
  });
}

// One causal call, and each of its rows alone against the keys it may see: decode is prefill.
TEST(PathOrder, DecodeIsPrefill) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const Index T = 1030;
    const Tensor q = normal({1, 4, T, 9}, 11, d);
    const Tensor k = normal({1, 2, T, 9}, 12, d);
    const Tensor v = normal({1, 2, T, 7}, 13, d);
    const SeededScore score = walk.score(4, 9);
    Runner run(walk, score.score());
    const RowsOut all = run({q, k, v}, {.masks = {Causal{}}});
    for (Index i :
         {0, 5, 6, 47, 48, 62, 63, 64, 127, 128, 510, 511, 512, 513, 575, 576, 1023, 1024, 1029}) {
      const Inputs step{slice(q.view(), 2, i, i + 1), slice(k.view(), 2, 0, i + 1),
                        slice(v.view(), 2, 0, i + 1)};
      const RowsOut alone = run(step, {});
      EXPECT_TRUE(same_bits(cut(all.out, 0, 4, i, i + 1), alone.out)) << "step " << i;
      EXPECT_TRUE(same_bits(cut(all.lse, 0, 4, i, i + 1), alone.lse)) << "step " << i;
      EXPECT_TRUE(same_bits(cut(all.row_max, 0, 4, i, i + 1), alone.row_max)) << "step " << i;
    }
  });
}

// Several queries at a time against a growing cache, at every length.
TEST(PathOrder, ACacheThatGrowsIsOnePrefill) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const Tensor q = normal({1, 2, 1030, 8}, 14, d);
    const Tensor k = normal({1, 1, 1030, 8}, 15, d);
    const Tensor v = normal({1, 1, 1030, 16}, 16, d);
    const SeededScore score = walk.score(2, 8);
    Runner run(walk, score.score());
    const Options causal{.softcap = 20, .masks = {Causal{}, Window{700, 0}}};
    const RowsOut all = run({q, k, v}, causal);
    for (Index T : kLengths) {
      const Index from = std::max<Index>(0, T - 13);
      const RowsOut step =
          run({slice(q.view(), 2, from, T), slice(k.view(), 2, 0, T), slice(v.view(), 2, 0, T)},
              causal);
      EXPECT_TRUE(same_bits(cut(all.out, 0, 2, from, T), step.out)) << T;
      EXPECT_TRUE(same_bits(cut(all.lse, 0, 2, from, T), step.lse)) << T;
    }
  });
}

// Rows, heads and batch entries alone give the same as among others.
TEST(PathOrder, RowsDoNotKnowTheirNeighbours) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const Tensor q = normal({2, 4, 100, 17}, 21, d);
    const Tensor k = normal({2, 2, 577, 17}, 22, d);
    const Tensor v = normal({2, 2, 577, 33}, 23, d);
    const Tensor bias = normal({100, 577}, 24, d);
    const Tensor slopes = normal({2, 4}, 25, d);
    const SeededScore score = walk.score(4, 17);
    Runner run(walk, ScaledDot{});
    const auto options = [&](Index i0, Index i1, Index h0, Index h1, Index b0 = 0, Index b1 = 2) {
      return Options{.score = score.heads(h0, h1),
                     .bias = slice(bias.view(), 0, i0, i1),
                     .diagonal = Offset{460 + i0},
                     .alibi = slice(slice(slopes.view(), 0, b0, b1), 1, h0, h1),
                     .masks = {Causal{}, Window{450, 0}}};
    };
    const RowsOut all = run({q, k, v}, options(0, 100, 0, 4));
    for (const auto& [i0, i1] : std::initializer_list<std::pair<Index, Index>>{
             {0, 1}, {5, 7}, {6, 12}, {47, 49}, {48, 96}, {95, 100}, {1, 100}, {99, 100}}) {
      const RowsOut some = run({slice(q.view(), 2, i0, i1), k, v}, options(i0, i1, 0, 4));
      const std::string what = "rows " + std::to_string(i0) + " to " + std::to_string(i1);
      EXPECT_TRUE(same_bits(cut(all.out, 0, 4, i0, i1), some.out)) << what;
      EXPECT_TRUE(same_bits(cut(all.lse, 0, 4, i0, i1), some.lse)) << what;
    }
    const auto part = [](const Tensor& x, Index b, Index h0, Index h1) {
      return slice(slice(x.view(), 0, b, b + 1), 1, h0, h1);
    };
    for (Index b : {0, 1}) {
      for (Index h : {0, 1, 3}) {
        const RowsOut one =
            run({part(q, b, h, h + 1), part(k, b, h / 2, h / 2 + 1), part(v, b, h / 2, h / 2 + 1)},
                options(0, 100, h, h + 1, b, b + 1));
        EXPECT_TRUE(same_bits(part(all.out, b, h, h + 1), one.out)) << b << "," << h;
        EXPECT_TRUE(same_bits(part(all.lse, b, h, h + 1), one.lse)) << b << "," << h;
      }
    }
  });
}

// Key heads shared by query heads equal repeated key heads.
TEST(PathOrder, GroupedHeadsAreRepeatedHeads) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    for (Index Tq : {1, 7, 50}) {
      const Tensor q = normal({1, 6, Tq, 16}, 31, d);
      const Tensor k = normal({1, 2, 530, 16}, 32, d);
      const Tensor v = normal({1, 2, 530, 16}, 33, d);
      Tensor k6(d, {1, 6, 530, 16});
      Tensor v6(d, {1, 6, 530, 16});
      for (Index h = 0; h < 6; ++h) {
        copy(slice(k.view(), 1, h / 3, h / 3 + 1), slice(k6, 1, h, h + 1));
        copy(slice(v.view(), 1, h / 3, h / 3 + 1), slice(v6, 1, h, h + 1));
      }
      const SeededScore score = walk.score(6, 16);
      Runner run(walk, score.score());
      expect_same(run({q, k, v}, {}), run({q, k6, v6}, {}), "Tq " + std::to_string(Tq));
    }
  });
}

TEST(PathOrder, MemoryOrderAndAlignmentDoNotMatter) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const Tensor q = normal({2, 2, 50, 17}, 41, d);
    const Tensor k = normal({2, 1, 530, 17}, 42, d);
    const Tensor v = normal({2, 1, 530, 33}, 43, d);
    const Tensor bias = normal({50, 530}, 44, d);
    const SeededScore score = walk.score(2, 17);
    Runner run(walk, score.score());
    const RowsOut plain = run({q, k, v}, {.bias = bias, .masks = {Causal{}}});
    for (Layout layout : kOwnLayouts) {
      std::vector<Guarded> arrays;
      for (const Tensor* x : {&q, &k, &v, &bias}) {
        arrays.emplace_back(d, x->shape(), layout);
        arrays.back().fill(values_of(*x));
      }
      expect_same(plain,
                  run({arrays[0], arrays[1], arrays[2]}, {.bias = arrays[3], .masks = {Causal{}}}),
                  std::string(name_of(layout)));
    }
  });
}

// Keys past a length, or behind any mask, might as well be absent, whatever they hold.
TEST(PathOrder, WhatIsMaskedIsNotThere) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const Tensor q = normal({1, 2, 49, 8}, 51, d);
    const SeededScore score = walk.score(2, 8);
    Runner run(walk, score.score());
    for (Index T : kLengths) {
      Tensor k = normal({1, 1, 1100, 8}, 52, d);
      Tensor v = normal({1, 1, 1100, 8}, 53, d);
      const Inputs only{q, slice(k, 2, 0, T), slice(v, 2, 0, T)};
      const RowsOut want = run(only, {});
      const std::vector<Index> lengths{T};
      Tensor keep(DType::kBool, Dims(1100));
      for (Index j = 0; j < T; ++j) keep.values<bool>()[static_cast<std::size_t>(j)] = true;
      const std::string what = "T " + std::to_string(T);
      expect_same(want, run({q, k, v}, {.masks = {KeyLengths{lengths}}}), what + ", lengths");
      const Tensor poison = [&] {
        Tensor x(DType::kFloat64, {1, 1, 1100 - T, 8});
        std::size_t n = 0;
        for (double& value : x.values<double>()) value = n++ % 3 == 0 ? INFINITY : NAN;
        return x;
      }();
      copy(poison, slice(k, 2, T, 1100));
      copy(poison, slice(v, 2, T, 1100));
      expect_same(want, run({q, k, v}, {.masks = {KeyLengths{lengths}}}), what + ", NaN behind");
      expect_same(want, run({q, k, v}, {.masks = {Keep{keep}}}), what + ", keep");
      expect_same(want,
                  run({q, k, v}, {.diagonal = Offset{T - 1}, .masks = {Window{-1, 0}, Keep{keep}}}),
                  what + ", keep and a window that ends there or later");
    }
  });
}

TEST(PathOrder, WhatElseIsAskedDoesNotMatter) {
  for_each_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const DType sums = accumulator_of(d);
    const Tensor q = normal({1, 2, 55, 8}, 61, d);
    const Tensor k = normal({1, 2, 530, 8}, 62, d);
    const Tensor v = normal({1, 2, 530, 8}, 63, d);
    const SeededScore score = walk.score(2, 8);
    const Options options{
        .score = score.score(), .softcap = 9, .masks = {Causal{}}, .dropout = {0.3, 5}};
    Runner run(walk, options.score);
    const RowsOut plain = run({q, k, v}, options);
    Tensor columns(sums, {1, 2, 530});
    Tensor top(sums, {1, 2, 55, 4});
    Tensor keys(DType::kInt64, {1, 2, 55, 4});
    std::vector<Tensor> matrices;
    for (int n = 0; n < 5; ++n) matrices.emplace_back(sums, Dims{1, 2, 55, 530});
    Tensor entropy(sums, {1, 2, 55});
    Tensor value_sums(sums, {1, 2, 530});
    Tensor pooled(sums, {1, 2, 6, 9});
    const Outputs more{.entropy = entropy,
                       .column_sums = columns,
                       .value_sums = value_sums,
                       .pooled = pooled,
                       .top = {4, top, keys},
                       .weights = View(matrices[0]),
                       .dropped_weights = View(matrices[1]),
                       .raw_scores = View(matrices[2]),
                       .capped_scores = View(matrices[3]),
                       .masked_scores = View(matrices[4])};
    expect_same(plain, run({q, k, v}, options, more), "everything asked");
    expect_same(plain, run({q, k, v}, options, {.column_sums = columns}), "column sums asked");
    expect_same(plain, run({q, k, v}, options, {.weights = View(matrices[0])}), "weights asked");
    // And each alone: out without lse, lse without out.
    Tensor out(d, {1, 2, 55, 8});
    Tensor lse(sums, {1, 2, 55});
    Context context;
    context.force_path(walk.path);
    attention({q, k, v}, options, {.out = out}, context);
    attention({q, k}, options, {.lse = lse}, context);
    EXPECT_TRUE(same_bits(plain.out, out));
    EXPECT_TRUE(same_bits(plain.lse, lse));
  });
}

// A call too large to be processed at once: more key heads, or more of their memory, than are held
// at a time. Keys and values are the same for all batch entries.
TEST(PathOrder, BatchEntriesOfManyAreThoseOfAFew) {
  struct Size {
    Index B, Tq, Tk, D, E;
  };
  const Index long_row = at_scale(65536, 8192);
  for (const Size& x :
       {Size{1100, 1, 1600, 8, 64}, Size{1030, 49, 3, 4, 4}, Size{3, 49, long_row, 64, 8}}) {
    for_each_path([&](const Walk& walk) {
      if (walk.path.starts_with(kReferencePath) || walk.dtype == DType::kFloat64) return;
      const Tensor q = normal({x.B, 1, x.Tq, x.D}, 71, walk.dtype);
      const Tensor k = normal({1, 1, x.Tk, x.D}, 72, walk.dtype);
      const Tensor v = normal({1, 1, x.Tk, x.E}, 73, walk.dtype);
      const SeededScore score(walk.kind, {.H = 1, .Dq = x.D, .Dk = x.D, .U = 3}, walk.dtype);
      Runner run(walk, score.score());
      const RowsOut all = run({q, k, v}, {});
      for (Index b : {Index{0}, Index{1}, x.B / 2, x.B - 2, x.B - 1, std::min<Index>(1023, x.B - 1),
                      std::min<Index>(1024, x.B - 1)}) {
        const RowsOut one = run({slice(q.view(), 0, b, b + 1), k, v}, {});
        EXPECT_TRUE(same_bits(slice(all.out.view(), 0, b, b + 1), one.out)) << x.B << ", " << b;
        EXPECT_TRUE(same_bits(slice(all.lse.view(), 0, b, b + 1), one.lse)) << x.B << ", " << b;
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
