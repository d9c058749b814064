// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/path_runner.h"
#include "tests/support/compare.h"

// The order of summation is part of the definition, on every path: a query's results and gradients
// do not depend, bit for bit, on threads, on its neighbours, on memory layout, on masked values or
// on other requested results; nor do keys' gradients, given the queries of their key head. Sizes
// are on both sides of the edges of kernels: rows of a tile (6), the most rows that count as few
// (48), panels (64 keys), gradient blocks (128), full blocks of queries (192), chunks (512).
namespace qkv::test {
namespace {

using Ranges = std::initializer_list<std::pair<Index, Index>>;

constexpr Index kLengths[] = {1, 63, 64, 65, 511, 512, 513, 1024, 1030};

ConstView rows_of(const ConstView& x, Index from, Index to) { return slice(x, 2, from, to); }

// The part [1,n,..] of a tensor [B,heads,..] that belongs to key head g of batch entry b: n is 1 in
// arrays of keys, and else the number of query heads per key head.
ConstView part(const Tensor& x, Index b, Index g, Index n) {
  return slice(slice(x.view(), 0, b, b + 1), 1, g * n, (g + 1) * n);
}

void forwards_on_one_thread(void*, Index count, Executor::Body body, void* state) {
  for (Index n = 0; n < count; ++n) body(state, n);
}
void backwards_on_one_thread(void*, Index count, Executor::Body body, void* state) {
  for (Index n = count - 1; n >= 0; --n) body(state, n);
}

// Checks several blocks of queries and chunks of keys, and all options; also a long forward call.
void check_threads(const Walk& walk) {
  for (const SeededCall& x :
       {SeededCall(1, 4, 2, 101, 330, 17, 9, walk), SeededCall(1, 1, 1, 260, 520, 8, 8, walk),
        SeededCall(1, 4, 2, 101, 1100, 17, 9, walk)}) {
    const bool is_long = x.k.size(2) == 1100;
    const std::vector<Index> lengths{1000};
    Options options = x.options();
    if (is_long) options.masks = {Window{1090, -1}, KeyLengths{lengths}};
    if (x.q.size(2) == 260 && walk.kind == ScoreKind::kDot) {
      options.mods = {score_mod([](auto s, At at) { return s - 0.001F * (at.j % 7) * s; })};
    }
    const auto run = [&](Executor executor) {
      PathRunner runner(walk, x.score.score(), std::move(executor));
      runner.besides = PathRunner::Besides::kEverything;
      return runner(x.inputs(), options, is_long ? OutputGradients() : x.sources());
    };
    const PathResults want = run({});
    const std::pair<const char*, Executor> executors[] = {
        {"2 threads", Executor::threads(2)},
        {"8 threads", Executor::threads(8)},
        {"in threads, in reverse", Executor(&backwards_in_threads, nullptr, 3)},
        {"again", Executor()},
        {"3 threads", Executor::threads(3)},
        {"one after the other", Executor(&forwards_on_one_thread, nullptr, 3)},
        {"in reverse", Executor(&backwards_on_one_thread, nullptr, 3)}};
    for (const auto& [name, executor] : std::span(executors).first(is_long ? 3 : 7)) {
      expect_same(want, run(executor), name);
    }
  }
}

TEST(PathOrder, SameBitsForAnyNumberOfThreads) {
  for_each_path(Passes::kForward, &check_threads);
  for (const std::string& path : all_paths()) {
    if (is_brief()) break;
    SCOPED_TRACE(path + ", bfloat16");
    check_threads({path, ScoreKind::kDot, DType::kBFloat16});
  }
}

// Compares one causal call with calls of some of its rows, over the keys that these attend to.
TEST(PathOrder, DecodeIsPrefill) {
  for_each_path(Passes::kForward, [](const Walk& walk) {
    const SeededCall x(1, 4, 2, 1030, 1030, 9, 16, walk);
    PathRunner run(walk, x.score.score());
    const auto check = [&](const PathResults& all, Index from, Index to, const Options& options) {
      const PathResults step =
          run({rows_of(x.q, from, to), rows_of(x.k, 0, to), rows_of(x.v, 0, to)}, options);
      for (const auto& [name, result] : step) {
        EXPECT_TRUE(same_bits(rows_of(all.at(name), from, to), result))
            << name << ", rows " << from << " to " << to;
      }
    };
    const PathResults all = run(x.inputs(), {.masks = {Causal{}}});
    for (const Index i : {0,   5,   6,   47,  48,  62,  63,  64,  127,  128,  191,
                          192, 193, 510, 511, 512, 513, 575, 576, 1023, 1024, 1029}) {
      check(all, i, i + 1, {});
    }
    // The last 13 queries of a prefix of T rows equal those of the whole call.
    const Options window{.softcap = 20, .masks = {Causal{}, Window{700, 0}}};
    const PathResults capped = run(x.inputs(), window);
    for (const Index T : kLengths) check(capped, std::max<Index>(0, T - 13), T, window);
  });
}

TEST(PathOrder, QueriesDoNotKnowTheirNeighbours) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const SeededCall x(1, 2, 1, 270, 577, 17, 33, walk);
    PathRunner run(walk, x.score.score());
    const auto some = [&](Index from, Index to) {
      const Options options{.bias = x.bias,
                            .diagonal = Offset{310 + from},
                            .alibi = x.slopes,
                            .masks = {Causal{}, Window{450, 0}}};
      return run({rows_of(x.q, from, to), x.k, x.v}, options, {.out = rows_of(x.dout, from, to)});
    };
    const PathResults all = some(0, 270);
    for (const auto& [from, to] : Ranges{{0, 1},
                                         {5, 7},
                                         {6, 12},
                                         {47, 49},
                                         {48, 96},
                                         {95, 100},
                                         {6, 130},
                                         {127, 129},
                                         {128, 256},
                                         {1, 270},
                                         {269, 270}}) {
      const PathResults alone = some(from, to);
      for (const char* name : {"out", "lse", "row_max", "dq"}) {
        EXPECT_TRUE(same_bits(rows_of(all.at(name), from, to), alone.at(name)))
            << name << ", rows " << from << " to " << to;
      }
    }
  });
}

// Dropout depends on (b, h, i, j): in a call of their own, only the first heads of entry 0 have the
// same b and h, and so the same dropout.
TEST(PathOrder, BatchEntriesAndHeadsDoNotKnowTheirNeighbours) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const SeededCall x(3, 4, 2, 140, 270, 16, 24, walk);
    PathRunner run(walk, x.score.score(), Executor::threads(2));
    for (const double dropout : {0.0, 0.4}) {
      Options options = x.options();
      options.dropout.p = dropout;
      const PathResults all = run(x.inputs(), options, x.sources());
      for (const auto& [b, g] : Ranges{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}) {
        if (dropout > 0 && b + g > 0) continue;
        Options one = options;
        one.score = x.score.heads(2 * g, 2 * g + 2);
        one.bias = slice(x.bias.view(), 0, 2 * g, 2 * g + 2);
        one.alibi = part(x.slopes, b, g, 2);
        one.sinks = slice(x.sinks.view(), 0, 2 * g, 2 * g + 2);
        const PathResults alone =
            run({part(x.q, b, g, 2), part(x.k, b, g, 1), part(x.v, b, g, 1)}, one,
                {.out = part(x.dout, b, g, 2),
                 .lse = part(x.dlse, b, g, 2),
                 .weights = {x.rows, part(x.dweights, b, g, 2)}});
        for (const char* name : {"out", "lse", "row_max", "dq", "dk", "dv", "dalibi"}) {
          const bool keys = name[1] == 'k' || name[1] == 'v';
          EXPECT_TRUE(same_bits(part(all.at(name), b, g, keys ? 1 : 2), alone.at(name)))
              << name << ", b " << b << ", g " << g << ", dropout " << dropout;
        }
      }
    }
  });
}

// Key heads that query heads share give the results of repeated key heads.
TEST(PathOrder, GroupedHeadsAreRepeatedHeads) {
  for_each_path(Passes::kForward, [](const Walk& walk) {
    for (const Index Tq : {1, 7, 50}) {
      const SeededCall x(1, 6, 2, Tq, 530, 16, 16, walk);
      const auto repeated = [&](const Tensor& heads) {
        Tensor all(walk.dtype, {1, 6, 530, 16});
        for (Index h = 0; h < 6; ++h) {
          copy(slice(heads.view(), 1, h / 3, h / 3 + 1), slice(all, 1, h, h + 1));
        }
        return all;
      };
      PathRunner run(walk, x.score.score());
      expect_same(run(x.inputs(), {}), run({x.q, repeated(x.k), repeated(x.v)}, {}),
                  "Tq " + std::to_string(Tq));
    }
  });
}

TEST(PathOrder, MemoryOrderAndAlignmentDoNotMatter) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const SeededCall x(2, 2, 1, 50, 530, 17, 33, walk);
    PathRunner run(walk, x.score.score());
    const auto moved = [&](Layout layout) {
      std::vector<Guarded> arrays;
      for (const Tensor* t : {&x.q, &x.k, &x.v, &x.bias, &x.sinks, &x.dout, &x.dlse}) {
        arrays.emplace_back(t->dtype(), t->shape(), layout);
        arrays.back().fill(values_of(*t));
      }
      run.layout = layout;
      return run({arrays[0], arrays[1], arrays[2]},
                 {.bias = arrays[3], .masks = {Causal{}}, .sinks = arrays[4]},
                 {.out = arrays[5], .lse = arrays[6]});
    };
    const PathResults want = moved(Layout::kContiguous);
    for (const Layout layout : kOwnLayouts) {
      expect_same(want, moved(layout), std::string(name_of(layout)));
    }
  });
}

// Keys past a length, or hidden by any mask, have no effect, whatever they hold.
TEST(PathOrder, AMaskedKeyIsAbsent) {
  for_each_path(Passes::kForward, [](const Walk& walk) {
    SeededCall x(1, 2, 1, 49, 1100, 8, 8, walk);
    PathRunner run(walk, x.score.score());
    for (const Index T : {1030, 1024, 513, 512, 511, 65, 64, 63, 1}) {
      const PathResults want = run({x.q, rows_of(x.k, 0, T), rows_of(x.v, 0, T)}, {});
      const std::vector<Index> lengths{T};
      Tensor keep(DType::kBool, Dims(1100));
      for (Index j = 0; j < T; ++j) keep.view().at<bool>({j}) = true;
      const auto check = [&](const Options& options, const char* what) {
        expect_same(want, run(x.inputs(), options), "T " + std::to_string(T) + ", " + what);
      };
      check({.masks = {KeyLengths{lengths}}}, "lengths");
      Tensor poison(DType::kFloat64, {1, 1, 1100 - T, 8});
      std::size_t n = 0;
      for (double& value : poison.values<double>()) value = n++ % 3 == 0 ? INFINITY : NAN;
      for (Tensor* to : {&x.k, &x.v}) copy(poison, slice(to->view(), 2, T, 1100));
      check({.masks = {KeyLengths{lengths}}}, "NaN behind");
      check({.masks = {Keep{keep}}}, "keep");
      check({.diagonal = Offset{T - 1}, .masks = {Window{-1, 0}, Keep{keep}}},
            "keep and a window that ends there or later");
    }
  });
}

TEST(PathOrder, OtherRequestedResultsDoNotMatter) {
  using Besides = PathRunner::Besides;
  for_each_path(Passes::kForward, [](const Walk& walk) {
    const SeededCall x(1, 2, 2, 55, 530, 8, 8, walk);
    const Options options{
        .score = x.score.score(), .softcap = 9, .masks = {Causal{}}, .dropout = {0.3, 5}};
    PathRunner run(walk, options.score);
    const PathResults plain = run(x.inputs(), options);
    for (const Besides besides : {Besides::kColumnSums, Besides::kWeights, Besides::kEverything}) {
      run.besides = besides;
      expect_contains(run(x.inputs(), options), plain,
                      "asked " + std::to_string(static_cast<int>(besides)));
    }
    // Each result may also be requested alone: out without lse, lse without out.
    Tensor out(walk.dtype, {1, 2, 55, 8});
    Tensor lse(accumulator_of(walk.dtype), {1, 2, 55});
    Context context = context_on(walk.path);
    attention(x.inputs(), options, {.out = out}, context);
    attention({x.q, x.k}, options, {.lse = lse}, context);
    EXPECT_TRUE(same_bits(plain.at("out"), out));
    EXPECT_TRUE(same_bits(plain.at("lse"), lse));
  });
}

// The calls are too large to be processed at once: paths process them by groups of key heads, which
// are limited in number and in memory. All batch entries share keys and values.
TEST(PathOrder, EntriesOfALargeBatchHaveTheBitsOfASmallOne) {
  struct Size {
    Index B, Tq, Tk, D, E;
  };
  const Index long_row = at_scale(65536, 8192);
  for (const Size& x :
       {Size{1100, 1, 1600, 8, 64}, Size{1030, 49, 3, 4, 4}, Size{3, 49, long_row, 64, 8}}) {
    for_each_path(Passes::kForward, [&](const Walk& walk) {
      if (walk.path.starts_with(kReferencePath) || walk.dtype == DType::kFloat64) return;
      const Tensor q = normal({x.B, 1, x.Tq, x.D}, 71, walk.dtype);
      const Tensor k = normal({1, 1, x.Tk, x.D}, 72, walk.dtype);
      const Tensor v = normal({1, 1, x.Tk, x.E}, 73, walk.dtype);
      const SeededScore score(walk.kind, {.H = 1, .Dq = x.D, .Dk = x.D, .U = 3}, walk.dtype);
      PathRunner run(walk, score.score());
      const PathResults all = run({q, k, v}, {});
      for (const Index b : {Index{0}, Index{1}, x.B / 2, x.B - 2, x.B - 1,
                            std::min<Index>(1023, x.B - 1), std::min<Index>(1024, x.B - 1)}) {
        for (const auto& [name, one] : run({slice(q.view(), 0, b, b + 1), k, v}, {})) {
          EXPECT_TRUE(same_bits(slice(all.at(name).view(), 0, b, b + 1), one))
              << name << " of " << x.B << ", " << b;
        }
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
