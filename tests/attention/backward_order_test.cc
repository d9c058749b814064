// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/gradient_runner.h"

// The order of summation of the gradients is part of the definition, on every path: their bits do
// not depend on threads, on other batch entries and heads, on memory layout, on packing, or on
// other requested results. Sizes are on both sides of kernel block edges: rows of a tile (6),
// panels (64), gradient blocks (128), chunks (512).
namespace qkv::test {
namespace {

void forwards_on_one_thread(void*, Index count, Executor::Body body, void* state) {
  for (Index n = 0; n < count; ++n) body(state, n);
}
void backwards_on_one_thread(void*, Index count, Executor::Body body, void* state) {
  for (Index n = count - 1; n >= 0; --n) body(state, n);
}
void backwards_in_threads(void*, Index count, Executor::Body body, void* state) {
  std::vector<std::thread> threads;
  for (Index n = count - 1; n >= 0; --n) threads.emplace_back([=] { body(state, n); });
  for (std::thread& thread : threads) thread.join();
}

// A call with every gradient: its arrays, and the options that name them.
struct Arrays {
  Arrays(Index B, Index H, Index G, Index Tq, Index Tk, Index D, Index E, const GradientWalk& walk)
      : Arrays(B, H, G, Tq, Tk, D, E, walk.dtype, walk.score(H, D)) {}
  Arrays(Index B, Index H, Index G, Index Tq, Index Tk, Index D, Index E, DType d, SeededScore of)
      : score(std::move(of)),
        q(normal({B, H, Tq, D}, 1, d)),
        k(normal({B, G, Tk, D}, 2, d)),
        v(normal({B, G, Tk, E}, 3, d)),
        bias(normal({H, 1, Tk}, 4, d)),
        slopes(normal({B, H}, 5, d)),
        sinks(normal(Dims(H), 6, d)),
        dout(normal({B, H, Tq, E}, 7, d)),
        dlse(normal({B, H, Tq}, 8, accumulator_of(d))),
        dweights(normal({B, H, 3, Tk}, 9, accumulator_of(d))) {}

  Inputs inputs() const { return {q, k, v}; }
  Options options() const {
    return {.softcap = 20,
            .bias = bias,
            .alibi = slopes,
            .masks = {Window{500, 300}},
            .sinks = sinks,
            .dropout = {0.2, 11}};
  }
  OutputGradients sources() const {
    return {.out = dout, .lse = dlse, .weights = {rows, ConstView(dweights)}};
  }

  SeededScore score;
  Tensor q, k, v, bias, slopes, sinks, dout, dlse, dweights;
  std::vector<Index> rows{5, 0, 5};
};

TEST(BackwardPathOrder, SameBitsForAnyNumberOfThreads) {
  for_each_backward_path([](const GradientWalk& walk) {
    for (const Arrays& x :
         {Arrays(1, 4, 2, 101, 330, 17, 9, walk), Arrays(1, 1, 1, 260, 520, 8, 8, walk)}) {
      const GradientTensors want =
          GradientRunner(walk, x.score.score())(x.inputs(), x.options(), x.sources());
      const std::pair<const char*, Executor> executors[] = {
          {"again", Executor()},
          {"2 threads", Executor::threads(2)},
          {"3 threads", Executor::threads(3)},
          {"8 threads", Executor::threads(8)},
          {"one after the other", Executor(&forwards_on_one_thread, nullptr, 3)},
          {"in reverse", Executor(&backwards_on_one_thread, nullptr, 3)},
          {"in threads, in reverse", Executor(&backwards_in_threads, nullptr, 3)}};
      for (const auto& [name, executor] : executors) {
        GradientRunner run(walk, x.score.score(), executor);
        for (int repeat = 0; repeat < 2; ++repeat) {
          expect_same(want, run(x.inputs(), x.options(), x.sources()), name);
        }
      }
    }
  });
}

// The part of key head g of batch entry b, or of its query heads.
ConstView part(const Tensor& x, Index b, Index g, Index heads_of_one) {
  return slice(slice(x.view(), 0, b, b + 1), 1, g * heads_of_one, (g + 1) * heads_of_one);
}

TEST(BackwardPathOrder, BatchEntriesAndHeadsDoNotKnowTheirNeighbours) {
  for_each_backward_path([](const GradientWalk& walk) {
    const Arrays x(3, 4, 2, 140, 270, 16, 24, walk);
    GradientRunner run(walk, x.score.score(), Executor::threads(2));
    Options options = x.options();
    options.dropout = {};
    const GradientTensors all = run(x.inputs(), options, x.sources());
    for (Index b : {0, 1, 2}) {
      for (Index g : {0, 1}) {
        Options one = options;
        one.score = x.score.heads(2 * g, 2 * g + 2);
        one.bias = slice(x.bias.view(), 0, 2 * g, 2 * g + 2);
        one.alibi = part(x.slopes, b, g, 2);
        one.sinks = slice(x.sinks.view(), 0, 2 * g, 2 * g + 2);
        const GradientTensors alone =
            run({part(x.q, b, g, 2), part(x.k, b, g, 1), part(x.v, b, g, 1)}, one,
                {.out = part(x.dout, b, g, 2),
                 .lse = part(x.dlse, b, g, 2),
                 .weights = {x.rows, part(x.dweights, b, g, 2)}});
        const std::string what = "b " + std::to_string(b) + ", g " + std::to_string(g);
        EXPECT_TRUE(same_bits(part(all.q, b, g, 2), alone.q)) << what;
        EXPECT_TRUE(same_bits(part(all.k, b, g, 1), alone.k)) << what;
        EXPECT_TRUE(same_bits(part(all.v, b, g, 1), alone.v)) << what;
        EXPECT_TRUE(same_bits(part(all.alibi, b, g, 2), alone.alibi)) << what;
      }
    }
  });
}

// Dropout is drawn by (b, h, i, j): the first entry and heads keep theirs.
TEST(BackwardPathOrder, DropoutDoesNotKnowOtherEntries) {
  for_each_backward_path([](const GradientWalk& walk) {
    const Arrays x(2, 4, 2, 70, 140, 8, 8, walk);
    GradientRunner run(walk, x.score.score());
    Options options{.dropout = {0.4, 3}};
    const GradientTensors all = run(x.inputs(), options, {.out = x.dout});
    options.score = x.score.heads(0, 2);
    const GradientTensors alone = run({part(x.q, 0, 0, 2), part(x.k, 0, 0, 1), part(x.v, 0, 0, 1)},
                                      options, {.out = part(x.dout, 0, 0, 2)});
    EXPECT_TRUE(same_bits(part(all.q, 0, 0, 2), alone.q));
    EXPECT_TRUE(same_bits(part(all.k, 0, 0, 1), alone.k));
    EXPECT_TRUE(same_bits(part(all.v, 0, 0, 1), alone.v));
  });
}

// A query's dq does not depend on other queries in the call.
TEST(BackwardPathOrder, QueriesDoNotKnowTheirNeighbours) {
  for_each_backward_path([](const GradientWalk& walk) {
    const Arrays x(1, 2, 1, 270, 400, 17, 5, walk);
    GradientRunner run(walk, x.score.score());
    const auto options = [&](Index from) {
      return Options{.diagonal = Offset{130 + from}, .masks = {Causal{}, Window{350, 0}}};
    };
    const GradientTensors all = run(x.inputs(), options(0), {.out = x.dout});
    for (const auto& [from, to] : std::initializer_list<std::pair<Index, Index>>{
             {0, 1}, {5, 7}, {6, 130}, {127, 129}, {128, 256}, {1, 270}, {269, 270}}) {
      const auto rows = [&](const Tensor& t) { return slice(t.view(), 2, from, to); };
      const GradientTensors some = run({rows(x.q), x.k, x.v}, options(from), {.out = rows(x.dout)});
      EXPECT_TRUE(same_bits(rows(all.q), some.q)) << from << " to " << to;
    }
  });
}

TEST(BackwardPathOrder, MemoryOrderDoesNotMatter) {
  for_each_backward_path([](const GradientWalk& walk) {
    const Arrays x(2, 2, 1, 50, 140, 17, 9, walk);
    const OutputGradients plain_sources{.out = x.dout, .lse = x.dlse};
    const Options options{.bias = x.bias, .masks = {Causal{}}, .sinks = x.sinks};
    GradientRunner run(walk, x.score.score());
    const GradientTensors want = run(x.inputs(), options, plain_sources);
    for (const Layout layout : kOwnLayouts) {
      std::vector<Guarded> arrays;
      for (const Tensor* t : {&x.q, &x.k, &x.v, &x.bias, &x.sinks, &x.dout, &x.dlse}) {
        arrays.emplace_back(t->dtype(), t->shape(), layout);
        arrays.back().fill(values_of(*t));
      }
      run.layout = layout;
      const GradientTensors got = run({arrays[0], arrays[1], arrays[2]},
                                      {.bias = arrays[3], .masks = {Causal{}}, .sinks = arrays[4]},
                                      {.out = arrays[5], .lse = arrays[6]});
      expect_same(want, got, std::string(name_of(layout)));
    }
  });
}

// Sequences of a packed call equal those of a padded one, in which rows past the end are empty.
TEST(BackwardPathOrder, PackedIsPadded) {
  for_each_backward_path([](const GradientWalk& walk) {
    const DType d = walk.dtype;
    const std::vector<Index> queries{130, 0, 7, 200};
    const std::vector<Index> keys{260, 5, 129, 64};
    const auto B = static_cast<Index>(queries.size());
    const Arrays x(B, 4, 2, 200, 260, 8, 12, walk);
    std::vector<Index> cu_q{0}, cu_k{0}, offsets, lengths;
    for (std::size_t b = 0; b < queries.size(); ++b) {
      cu_q.push_back(cu_q.back() + queries[b]);
      cu_k.push_back(cu_k.back() + keys[b]);
      offsets.push_back(keys[b] - queries[b]);
      for (Index i = 0; i < 200; ++i) lengths.push_back(i < queries[b] ? keys[b] : 0);
    }
    // The rows that belong to sequences, as [sum T, heads, C].
    const auto packed = [&](const ConstView& t, const std::vector<Index>& counts) {
      Index total = 0;
      for (Index count : counts) total += count;
      Tensor to(d, {total, t.size(1), t.size(3)});
      Index row = 0;
      for (Index b = 0; b < B; ++b) {
        const Index count = counts[static_cast<std::size_t>(b)];
        if (count == 0) continue;
        const Tensor one = contiguous(slice(slice(t, 0, b, b + 1), 2, 0, count));
        copy(transpose(reshape(one.view(), {t.size(1), count, t.size(3)}), 0, 1),
             slice(to, 0, row, row + count));
        row += count;
      }
      return to;
    };
    const auto options = [&] {
      return Options{
          .alibi = x.slopes, .masks = {Window{150, 40}}, .sinks = x.sinks, .dropout = {0.2, 4}};
    };
    Options padded = options();
    padded.diagonal = Offsets{offsets};
    padded.masks.emplace_back(KeyLengths{ConstView(lengths.data(), {B, 200})});
    GradientRunner run(walk, x.score.score());
    const GradientTensors want = run(x.inputs(), padded, {.out = x.dout});
    const Tensor q = packed(x.q, queries);
    const Tensor k = packed(x.k, keys);
    const Tensor v = packed(x.v, keys);
    const Tensor dout = packed(x.dout, queries);
    const GradientTensors got = run({q, k, v, cu_q, cu_k}, options(), {.out = dout});
    EXPECT_TRUE(same_bits(packed(want.q, queries), got.q));
    EXPECT_TRUE(same_bits(packed(want.k, keys), got.k));
    EXPECT_TRUE(same_bits(packed(want.v, keys), got.v));
    for (const auto of :
         {&GradientTensors::alibi, &GradientTensors::w, &GradientTensors::wq, &GradientTensors::wk,
          &GradientTensors::score_v, &GradientTensors::score_b}) {
      if (!(want.*of).given()) continue;
      EXPECT_TRUE(same_bits(want.*of, got.*of));
    }
  });
}

TEST(BackwardPathOrder, WhatElseIsAskedDoesNotMatter) {
  for_each_backward_path([](const GradientWalk& walk) {
    const Arrays x(1, 4, 2, 70, 140, 8, 12, walk);
    GradientRunner run(walk, x.score.score(), Executor::threads(2));
    const GradientTensors all = run(x.inputs(), x.options(), x.sources());
    const int most = 1 << GradientTensors::kNames.size();
    for (int asked = 1; asked < most; asked += 29 * 100 / at_scale(100, 8)) {
      run.asked = asked;
      if (!run.asks_any(x.inputs(), x.options())) continue;
      const GradientTensors some = run(x.inputs(), x.options(), x.sources());
      for (std::size_t n = 0; n < all.all().size(); ++n) {
        if ((asked >> n & 1) == 0 || !all.all()[n]->given()) continue;
        EXPECT_TRUE(same_bits(*all.all()[n], *some.all()[n]))
            << GradientTensors::kNames[n] << ", asked " << asked;
      }
    }
  });
}

// Accumulation adds the finished gradient: one addition to the previous value. (Of a gradient that
// is rounded to bfloat16 only what follows is known; conformance tests see it.)
TEST(BackwardPathOrder, AddingIsOneAddition) {
  for_each_backward_path([](const GradientWalk& walk) {
    const DType d = walk.dtype;
    if (d != accumulator_of(d)) return;
    const Arrays x(1, 4, 2, 140, 140, 8, 12, walk);
    GradientRunner run(walk, x.score.score());
    const GradientTensors once = run(x.inputs(), x.options(), x.sources());
    run.write = Write::kAccumulate;  // to 1 in every element
    const GradientTensors added = run(x.inputs(), x.options(), x.sources());
    for (std::size_t n = 0; n < once.all().size(); ++n) {
      if (!once.all()[n]->given()) continue;
      std::vector<double> want = values_of(*once.all()[n]);
      for (double& value : want) {
        value = d == DType::kFloat32 ? static_cast<double>(static_cast<float>(value) + 1.0F)
                                     : value + 1;
      }
      EXPECT_TRUE(compare(GradientTensors::kNames[n], *added.all()[n], want, {}, ""));
    }
  });
}

// ---- numbers that are none ------------------------------------------------------------------

// A mask of some kind, and whether query i may see key j.
struct Masking {
  const char* name;
  Options options;
  bool (*live)(Index i, Index j);
};

constexpr Index kQueries = 150;
constexpr Index kKeys = 330;

bool scattered(Index i, Index j) { return i % 7 != 3 && j % 5 != 2 && j < 300 && (i + j) % 3 != 0; }
bool columns(Index, Index j) { return j % 5 != 2 && j < 200; }
bool lengths(Index i, Index j) { return j < (i % 3 == 0 ? 0 : 129 + i); }
bool causal(Index i, Index j) { return j <= i - 20; }
bool window(Index i, Index j) { return j >= i + 200 - 30 && j <= i + 200 + 2; }

// Fills the places of x for which dead(row, column) holds with NaN and infinities, or with zeros.
template <class Dead>
void poison(Tensor& x, bool odd, const Dead& dead) {
  const double kOdd[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                         -std::numeric_limits<double>::infinity()};
  const View view = x.view();
  const Index width = view.size(-1);
  const Index rows = view.rank() < 2 ? 1 : view.size(-2);
  for (Index n = 0; n < view.element_count(); ++n) {
    if (!dead(n / width % rows, n % width)) continue;
    core::store(view.dtype(), view.data(), n, odd ? kOdd[n % 3] : 0);
  }
}

// Masked values may be anything: in k, v, q, dout, dlse, dweights and bias.
TEST(BackwardPathOrder, WhatIsMaskedIsNotThere) {
  for_each_backward_path([](const GradientWalk& walk) {
    const DType d = walk.dtype;
    if (d == DType::kFloat64 && walk.kind != ScoreKind::kDot) return;  // it is slow
    Tensor keep(DType::kBool, {kQueries, kKeys});
    Tensor fill(d, {kQueries, kKeys});
    Tensor padding(DType::kBool, {2, kKeys});
    std::vector<Index> ends;
    for (Index i = 0; i < kQueries; ++i) {
      for (Index j = 0; j < kKeys; ++j) {
        keep.view().at<bool>({i, j}) = scattered(i, j);
        core::store(d, fill.view().data(), i * kKeys + j, scattered(i, j) ? 0.1 : -INFINITY);
      }
    }
    for (Index j = 0; j < kKeys; ++j) {
      padding.view().at<bool>({0, j}) = padding.view().at<bool>({1, j}) = !columns(0, j);
    }
    for (Index b = 0; b < 2; ++b) {
      for (Index i = 0; i < kQueries; ++i) ends.push_back(i % 3 == 0 ? 0 : 129 + i);
    }
    const Masking maskings[] = {
        {"keep", {.masks = {Keep{keep}}}, &scattered},
        {"padding", {.masks = {Padding{padding}}}, &columns},
        {"lengths", {.masks = {KeyLengths{ConstView(ends.data(), {2, kQueries})}}}, &lengths},
        {"causal", {.diagonal = Offset{-20}, .masks = {Causal{}}}, &causal},
        {"window", {.diagonal = Offset{200}, .masks = {Window{30, 2}}}, &window},
        {"mask_mod",
         {.masks = {mask_mod([](At at) { return scattered(at.i, at.j); })}},
         &scattered},
        {"bias", {.bias = fill}, &scattered}};
    for (const Masking& m : maskings) {
      const auto dead_query = [&](Index i, Index) {
        for (Index j = 0; j < kKeys; ++j) {
          if (m.live(i, j)) return false;
        }
        return true;
      };
      const auto dead_key = [&](Index j, Index) {
        for (Index i = 0; i < kQueries; ++i) {
          if (m.live(i, j)) return false;
        }
        return true;
      };
      const auto dead_pair = [&](Index i, Index j) { return !m.live(i, j); };
      const auto gradients = [&](bool odd) {
        Arrays x(2, 2, 1, kQueries, kKeys, 9, 6, walk);
        Tensor bias = normal({kQueries, kKeys}, 10, d);
        Tensor dweights = normal({2, 2, kQueries, kKeys}, 11, accumulator_of(d));
        poison(x.q, odd, dead_query);
        poison(x.k, odd, dead_key);
        poison(x.v, odd, dead_key);
        poison(x.dout, odd, dead_query);
        poison(x.dlse, odd, [&](Index, Index i) { return dead_query(i, 0); });
        poison(dweights, odd, dead_pair);
        poison(bias, odd, dead_pair);
        Options options = m.options;
        if (!options.bias.given()) options.bias = bias;
        options.dropout = {0.2, 6};
        GradientRunner run(walk, x.score.score());
        return run(x.inputs(), options,
                   {.out = x.dout, .lse = x.dlse, .weights = ConstView(dweights)});
      };
      const GradientTensors got = gradients(true);
      expect_same(gradients(false), got, m.name);
      // And an empty row's dq is exactly 0.
      const std::vector<double> dq = values_of(got.q);
      for (std::size_t n = 0; n < dq.size(); ++n) {
        const Index i = static_cast<Index>(n) / 9 % kQueries;
        if (dead_query(i, 0)) {
          ASSERT_EQ(dq[n], 0) << m.name << ", query " << i;
        }
      }
    }
  });
}

// A NaN that a query sees makes its dq NaN, and dk and dv of the keys that it sees; the dq of other
// queries is unchanged, to the bit.
TEST(BackwardPathOrder, ALiveNanReachesWhatDependsOnIt) {
  for_each_backward_path([](const GradientWalk& walk) {
    const DType d = walk.dtype;
    constexpr Index kRow = 131;
    const Options options{.diagonal = TopLeft{}, .masks = {Causal{}, Window{60, 0}}};
    const Arrays x(1, 1, 1, 140, 140, 9, 6, walk);
    GradientRunner run(walk, x.score.score());
    const GradientTensors plain = run(x.inputs(), options, {.out = x.dout});
    for (const char* where : {"q", "k", "v", "dout"}) {
      Arrays y(1, 1, 1, 140, 140, 9, 6, walk);
      Tensor& to = where[0] == 'q' ? y.q : where[0] == 'k' ? y.k : where[0] == 'v' ? y.v : y.dout;
      poison(to, true, [](Index row, Index c) { return row == kRow && c == 2; });
      // The poison at this place is whichever comes; make it NaN.
      core::store(d, to.view().data(), kRow * to.size(3) + 2, std::nan(""));
      const GradientTensors got = run(y.inputs(), options, {.out = y.dout});
      const bool key = where[0] == 'k' || where[0] == 'v';
      const auto sees = [&](Index i) {  // does query i see the NaN?
        return key ? i >= kRow && i - kRow <= 60 : i == kRow;
      };
      const auto rows = [](const Tensor& t, Index i) { return slice(t.view(), 2, i, i + 1); };
      const auto all_nan = [&](const Tensor& t, Index i) {
        for (double value : values_of(rows(t, i))) {
          if (!std::isnan(value)) return false;
        }
        return true;
      };
      for (Index i = 0; i < 140; ++i) {
        if (sees(i)) {
          EXPECT_TRUE(all_nan(got.q, i)) << where << ", query " << i;
        } else {
          EXPECT_TRUE(same_bits(rows(plain.q, i), rows(got.q, i))) << where << ", query " << i;
        }
      }
      for (Index j = 0; j < 140; ++j) {
        bool seen = false;  // by a query whose row is NaN
        for (Index i = j; i < std::min<Index>(140, j + 61); ++i) seen = seen || sees(i);
        EXPECT_EQ(all_nan(got.k, j), seen) << where << ", key " << j;
        if (!seen) {
          EXPECT_TRUE(same_bits(rows(plain.k, j), rows(got.k, j))) << where << ", key " << j;
          EXPECT_TRUE(same_bits(rows(plain.v, j), rows(got.v, j))) << where << ", key " << j;
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
