// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/weight_factor.h"
#include "tests/attention/edge_calls.h"

// The edge cases of docs/semantics.md on every path, forward and backward. The oracle's cases check
// numbers; these tests check rules. PathEdges has special values, PathSizes empty and long axes.
namespace qkv::test {
namespace {

// Each walk, that is a path, a score and a dtype, really runs on its path, forward and backward,
// and every path that this CPU and QKV_TARGET allow has at least one walk.
TEST(PathEdges, WalkEveryPath) {
  for (const auto& [reason, count] : walks().skipped) {
    std::printf("edges: %d combinations left out: %s\n", count, reason.c_str());
  }
  std::printf("edges: %zu walked\n", walks().all.size());
  std::map<std::string, int> of_path;
  for_each_walk([&](const Walk& walk) {
    ++of_path[walk.path];
    const Tensor x = normal({4, 8}, 1, walk.dtype);
    Context context = context_on(walk.path);
    const SeededScore score = walk.score(1, 8);
    const Plan plan({x, x, x}, {.score = score.score()}, context);
    EXPECT_EQ(plan.path(), walk.path);
    EXPECT_EQ(plan.backward_path(), walk.path);
  });
  for (const attn::Implementation* one : attn::implementations()) {
    const bool is_allowed = !left_out(*one, ScoreKind::kDot, DType::kBFloat16).starts_with("not ");
    EXPECT_EQ(of_path.count(std::string(one->name)) != 0, is_allowed) << one->name;
  }
}

// ---- options that mean the same -------------------------------------------------------------

// Makes a score function that adds a table [H,Tk], of which it has a copy.
ScoreMod plus_table(std::vector<double> table, Index Tk) {
  return score_mod(
      [table, Tk](auto s, At at) { return s + table[static_cast<std::size_t>(at.h * Tk + at.j)]; });
}

TEST(PathEdges, EquivalentOptionsHaveTheSameBits) {
  for_each_call([](EdgeCall& x) {
    const Index o = x.Tk - x.Tq;
    const auto same = [&](const char* what, const Options& a, const Options& b) {
      expect_equal(x.run(x.inputs(), a, x.sources()), x.run(x.inputs(), b, x.sources()), what);
    };
    const auto by_column = [&](double first, double others) {
      return x.array(x.walk.dtype, {x.Tq, x.Tk},
                     [=](Index, Index j) { return j < 2 ? first : others; });
    };
    const KeyLengths two = x.lengths(2, 2);
    const ScoreMod plus_one = score_mod([](auto s, At) { return s + 1; });
    same("-inf in the bias masks", {.bias = by_column(0, 0), .masks = {two}},
         {.bias = by_column(0, -kInf)});
    same("-inf from a function masks, and its NaN derivative is not used", {.masks = {two}},
         {.mods = {score_mod(
              [](auto s, At at) { return select(at.j < 2, s, decltype(s)(-INFINITY) * s * s); })}});
    same("an offset alone masks nothing", {}, {.diagonal = Offset{-3}});
    same("a window with causal has the right side 0", {.masks = {Window{1, 5}, Causal{}}},
         {.masks = {Window{1, 0}}});
    same("lengths do not move the diagonal", {.masks = {Causal{}, x.lengths(3, x.Tk - 1)}},
         {.masks = {mask_mod([=, Tk = x.Tk](At at) {
            return at.j <= at.i + o && at.j < (at.i == 0 ? 3 : Tk - 1);
          })}});
    same("causal", {.masks = {Causal{}}},
         {.masks = {mask_mod([=](At at) { return at.j <= at.i + o; })}});
    same("a window", {.diagonal = TopLeft{}, .masks = {Window{1, 1}}},
         {.masks = {mask_mod([](At at) { return at.i - 1 <= at.j && at.j <= at.i + 1; })}});
    same("ALiBi", {.alibi = x.array(x.walk.dtype, {2}, [](Index, Index h) { return h + 0.25; })},
         {.mods = {score_mod(
              [=](auto s, At at) { return s - (at.h + 0.25F) * abs(at.i + o - at.j); })}});
    same("soft-cap", {.softcap = 3},
         {.mods = {score_mod([](auto s, At) { return soft_cap(s, 3); })}});
    same("functions follow the soft-cap, in turn, and precede the bias",
         {.softcap = 4,
          .mods = {plus_one, score_mod([](auto s, At) { return s * 8; })},
          .bias = x.bias},
         {.mods = {score_mod([](auto s, At) { return (soft_cap(s, 4) + 1) * 8; }),
                   plus_table(values_of(x.bias), x.Tk)}});
    const auto place = [](Index b, Index h, Index i, Index j) {
      return static_cast<double>((5 * b + 3 * h + 7 * i + j) % 16) / 8;
    };
    same("functions get the b, h, i and j of a pair",
         {.bias = x.array(x.walk.dtype, {2, 2, x.Tq, x.Tk},
                          [&, Tq = x.Tq](Index n, Index j) {
                            return place(n / Tq / 2, n / Tq % 2, n % Tq, j);
                          })},
         {.mods = {score_mod([=](auto s, At at) { return s + place(at.b, at.h, at.i, at.j); })}});
    same("results of functions have no effect where masked",
         {.mods = {plus_one}, .masks = {Causal{}}},
         {.mods = {score_mod([=](auto s, At at) { return at.j > at.i + o ? s * 0 / 0 : s + 1; })},
          .masks = {Causal{}}});
    same("min and max have gradients",
         {.mods = {score_mod([](auto s, At) { return max(-0.5, min(s, 0.5)); })}},
         {.mods = {score_mod([](auto s, At) {
            const auto half = s * 0 + 0.5;
            return select(s > 0.5, half, select(s < -0.5, -half, s));
          })}});
    // The constant 0.1 is rounded alike in the two passes: the weight exp(s - lse) of a query's
    // only key would otherwise not be exactly 1, and dv would change.
    const ScoreMod tenth = score_mod([](auto s, At) { return s * 0.1; });
    const Options one{.masks = {x.lengths(1, 1)}}, changed{.mods = {tenth}, .masks = one.masks};
    EXPECT_TRUE(same_bits(x.run(x.inputs(), one, x.sources()).at("dv"),
                          x.run(x.inputs(), changed, x.sources()).at("dv")));
    if (x.walk.kind == ScoreKind::kAdditive) {
      const Tensor w = normal({7, 16}, 61, x.walk.dtype);
      const Tensor u = normal(Dims(7), 62, x.walk.dtype);
      same("v^T tanh(W [k; q]) is W cut in two", {.score = Additive::concat(w, 8, u)},
           {.score = Additive{slice(w.view(), 1, 8, 16), slice(w.view(), 1, 0, 8), u}});
    }
  });
}

// Results do not depend on k, v and bias of masked pairs: NaN and infinities give the results of
// zeros. This includes value_sums, which skip values that no query attends to, since 0 * NaN would
// be NaN.
TEST(PathEdges, MaskedValuesHaveNoEffect) {
  for_each_call([](EdgeCall& x) {
    const auto results = [&](double hidden) {
      const auto poisoned = [&](const Tensor& from) {
        Tensor to = contiguous(from.view());
        for (Index j = 2; j < x.Tk; ++j) {
          for (Index b = 0; b < 2; ++b) {
            const View row = slice(slice(to.view(), 0, b, b + 1), 2, j, j + 1);
            copy(x.numbers(hidden, row.shape()), row);
          }
        }
        return to;
      };
      const Tensor k = poisoned(x.k), v = poisoned(x.v);
      const ConstView bias =
          x.array(x.walk.dtype, {x.Tq, x.Tk}, [=](Index, Index j) { return j < 2 ? 0 : hidden; });
      return x.run({x.q, k, v}, {.bias = bias, .masks = {x.lengths(2, 2)}}, x.sources());
    };
    const PathResults want = results(0);
    for (const double hidden : {kNaN, kInf, -kInf}) expect_equal(want, results(hidden), "hidden");
  });
}

// q (2,8,4) and k (5,2,8,4) have 2 heads and a batch of 5, whose entries share q.
TEST(PathEdges, MixedRanksAlignFromTheRight) {
  for_each_walk([](const Walk& walk) {
    const SeededScore score = walk.score(2, 4);
    const Tensor q = normal({2, 8, 4}, 41, walk.dtype);
    const Tensor k = normal({5, 2, 8, 4}, 42, walk.dtype);
    const Tensor v = normal({5, 2, 8, 3}, 43, walk.dtype);
    const Tensor dout = normal({5, 2, 8, 3}, 44, walk.dtype);
    PathRunner run(walk, score.score());
    const PathResults mixed = run({q, k, v}, {}, {.out = dout});
    for (Index b = 0; b < 5; ++b) {
      const auto entry = [&](const ConstView& t) { return slice(t, 0, b, b + 1); };
      const PathResults one =
          run({reshape(q.view(), {1, 2, 8, 4}), entry(k), entry(v)}, {}, {.out = entry(dout)});
      for (const char* name : {"out", "lse", "dk", "dv"}) {
        EXPECT_TRUE(same_bits(entry(mixed.at(name)), one.at(name))) << name << " of entry " << b;
      }
    }
  });
}

// ---- rows without an unmasked key -----------------------------------------------------------

// Returns options that mask all keys of all queries, in every way.
std::vector<std::pair<const char*, Options>> options_that_empty_rows(EdgeCall& x) {
  const auto nowhere = [](auto s, At) { return decltype(s)(-INFINITY) * s * s; };
  const ConstView minus = x.numbers(-kInf, {x.Tq, x.Tk});
  std::vector<std::pair<const char*, Options>> ways{
      {"lengths", {.masks = {x.lengths(0, 0)}}},
      {"causal", {.diagonal = Offset{-100}, .masks = {Causal{}}}},
      {"window", {.diagonal = Offset{200}, .masks = {Window{3, 3}}}},
      {"keep", {.masks = {Keep{x.array(DType::kBool, Dims(1), [](Index, Index) { return 0; })}}}},
      {"padding",
       {.masks = {Padding{x.array(DType::kBool, {2, x.Tk}, [](Index, Index) { return 1; })}}}},
      {"mask_mod", {.masks = {mask_mod([](At) { return false; })}}},
      {"bias", {.bias = minus}},
      {"function", {.mods = {score_mod(nowhere)}}}};
  // A bias of -inf and an infinite or NaN slope may add up to NaN, but the pair is masked all the
  // same.
  for (const double slope : {kInf, -kInf, kNaN}) {
    ways.push_back({"bias and slope", {.bias = minus, .alibi = x.numbers(slope, Dims(2))}});
  }
  return ways;
}

// Expects the results of empty rows: lse and row_max are the sink (neither scaled, capped, masked
// nor dropped), or -inf without one; dsinks is the sum of dlse; masked scores are -inf, top keys
// -1, and all other results 0. Raw and capped scores are not checked.
void expect_empty(const EdgeCall& x, const PathResults& results, bool has_sinks,
                  const std::string& what) {
  for (const auto& [name, result] : results) {
    if (name == "raw_scores" || name == "capped_scores") continue;
    const bool of_sink = name == "lse" || name == "row_max";
    if (name == "dsinks") {
      std::vector<double> want(2, 0);
      for_each_element(x.dlse, [&](Index bh, Index, Index, double d) {
        want[static_cast<std::size_t>(bh % 2)] += d;
      });
      const double eps = std::ldexp(1, x.walk.dtype == DType::kFloat64   ? -46
                                       : x.walk.dtype == DType::kFloat32 ? -17
                                                                         : -5);
      EXPECT_TRUE(compare(name, result, want, {eps, eps}, what));
      continue;
    }
    const double rest = of_sink || name == "masked_scores" ? -kInf : name == "top_keys" ? -1 : 0;
    std::vector<double> want(static_cast<std::size_t>(result.element_count()), rest);
    for (std::size_t n = 0; has_sinks && of_sink && n < want.size(); ++n) {
      want[n] = values_of(x.sinks)[n / static_cast<std::size_t>(x.Tq) % 2];
    }
    EXPECT_TRUE(compare(name, result, want, {}, what));
  }
}

TEST(PathEdges, ARowWithoutALiveKeyIsZero) {
  for_each_call([](EdgeCall& x) {
    const ConstView nan = x.numbers(kNaN, x.dout.shape());  // dout of empty rows has no effect
    const OutputGradients sources{
        .out = nan, .lse = x.dlse, .weights = {x.rows, ConstView(x.dweights)}};
    for (auto& [way, options] : options_that_empty_rows(x)) {
      expect_empty(x, x.run(x.inputs(), options, sources), false, way);
      options.scale = 100.0;
      options.softcap = 2;
      options.sinks = x.sinks;
      options.dropout = {0.9, 1};
      expect_empty(x, x.run(x.inputs(), options, sources), true, way);
    }
    // A dot product of positive q with k = -inf is itself -inf. Other scores need not be.
    if (x.walk.kind != ScoreKind::kDot) return;
    const Inputs inputs{x.numbers(1, x.q.shape()), x.numbers(-kInf, x.k.shape()), x.v};
    expect_empty(x, x.run(inputs, {}, sources), false, "scores");
  });
}

// One row attends to no key, the others to one key, which has their whole weight, so dq and dk are
// exactly 0. This holds for the last query only if the gradients of its weights, which x.rows lists
// twice, are added before delta is subtracted. `pooled` has 6 x 9 cells.
TEST(PathEdges, AnEmptyRowAddsNothingAndCountsInMeans) {
  for_each_call([](EdgeCall& x) {
    const PathResults got = x.run(x.inputs(), {.masks = {x.lengths(0, 1)}},
                                  {.out = x.dout, .weights = {x.rows, ConstView(x.dweights)}});
    const Index of_cell = (x.Tq + 5) / 6;  // number of queries of the first cell
    const auto expect = [&](const char* name, const auto& want, double rounding = 1e-6) {
      for_each_element(got.at(name), [&](Index bh, Index i, Index j, double value) {
        EXPECT_NEAR(value, want(bh, i, j), rounding) << name << " " << bh << " " << i << " " << j;
      });
    };
    const std::vector<double> v = values_of(x.v);
    expect("out", [&](Index bh, Index i, Index c) {
      return i == 0 ? 0 : v[static_cast<std::size_t>(bh / 2 * x.Tk * 3 + c)];
    });
    expect("weights", [](Index, Index i, Index j) { return i > 0 && j == 0 ? 1.0 : 0.0; });
    expect("entropy", [](Index, Index, Index) { return 0.0; });
    expect("column_sums", [&](Index, Index j, Index) { return j == 0 ? double(x.Tq - 1) : 0.0; });
    expect("pooled", [&](Index, Index m, Index n) {
      const bool has_queries = m == 0 || (m * x.Tq + 5) / 6 < ((m + 1) * x.Tq + 5) / 6;
      return n > 0 || !has_queries ? 0.0 : m == 0 ? 1.0 - 1.0 / double(of_cell) : 1.0;
    });
    for (const char* name : {"dq", "dk"})
      expect(
          name, [](Index, Index, Index) { return 0.0; }, 0);
  });
}

// ---- non-finite numbers ---------------------------------------------------------------------

// Query 0 attends to three keys, at least one of which gives it a score of NaN or +inf; the other
// queries attend to the first key alone.
TEST(PathEdges, ALiveNaNOrInfinityMakesItsRowNaN) {
  for_each_call([](EdgeCall& x) {
    const auto check = [&](const char* what, const Inputs& inputs, Options options) {
      options.masks = {x.lengths(3, 1)};
      const PathResults got = x.run(inputs, options, {.out = x.dout});
      const auto expect_nan = [&](const char* name, const auto& where) {
        Index wrong = 0;
        for_each_element(got.at(name), [&](Index, Index i, Index j, double value) {
          wrong += std::isnan(value) != where(i, j);
        });
        EXPECT_EQ(wrong, 0) << what << ": " << name;
      };
      const auto first = [](Index i, Index) { return i == 0; };
      const auto seen = [](Index j, Index) { return j < 3; };
      for (const char* name : {"out", "lse", "row_max", "entropy", "dq"}) expect_nan(name, first);
      for (const char* name : {"column_sums", "value_sums", "dk", "dv"}) expect_nan(name, seen);
      expect_nan("weights", [](Index i, Index j) { return i == 0 && j < 3; });
      expect_nan("pooled", [&](Index m, Index n) { return m == 0 && n <= 2 * 9 / x.Tk; });
      for (Index b = 0; b < 2; ++b) {
        const auto row = [&](const ConstView& t, Index i) {
          return values_of(slice(slice(t, 0, b, b + 1), 2, i, i + 1));
        };
        const std::vector<double> v = row(inputs.v, 0);
        std::vector<double> heads = v;
        heads.insert(heads.end(), v.begin(), v.end());
        EXPECT_EQ(row(got.at("out"), 1), heads) << what;
      }
    };
    const auto with = [&](const Tensor& from, Index row, double value) {
      Tensor to = contiguous(from.view());
      const View cell = slice(slice(to.view(), 2, row, row + 1), 3, 2, 3);
      copy(x.numbers(value, cell.shape()), cell);
      return to;
    };
    const Tensor nan_q = with(x.q, 0, kNaN), nan_k = with(x.k, 1, kNaN);
    check("NaN in q", {nan_q, x.k, x.v}, {});
    check("NaN in k", {x.q, nan_k, x.v}, {});
    for (const double value : {kNaN, kInf}) {
      check("bias", x.inputs(), {.bias = x.array(x.walk.dtype, {x.Tq, x.Tk}, [=](Index i, Index j) {
              return i == 0 && j == 1 ? value : 0;
            })});
      check("function", x.inputs(), {.mods = {score_mod([=](auto s, At at) {
                                       return select(at.i == 0 && at.j == 1, s + value, s);
                                     })}});
    }
    // With other scores an infinity in k may give a finite score, or -inf.
    if (x.walk.kind != ScoreKind::kDot) return;
    // A positive q makes the score +inf, not -inf.
    const Tensor one_q = with(x.q, 0, 1), far_k = with(x.k, 1, kInf);
    check("+inf in k", {one_q, far_k, x.v}, {});
  });
}

// ---- sinks ----------------------------------------------------------------------------------

// All scores are 0. In the call with small values there is a sink: it has its share of the weight,
// and is part of lse and row_max, but not of the entropy of the keys. value_sums are norms of
// values whose squares underflow, overflow or are infinite.
TEST(PathEdges, ASinkTakesWeightAndNothingElse) {
  for_each_call([](EdgeCall& x) {
    const bool wide = x.walk.dtype == DType::kFloat64, narrow = size_of(x.walk.dtype) < 4;
    const double large = wide ? 1e200 : x.walk.dtype == DType::kFloat16 ? 1e4 : 1e30;
    for (const double size : {large, 1 / large, kInf}) {
      Options options{.mods = {score_mod([](auto s, At) { return s * 0; })}};
      if (size < 1) options.sinks = x.numbers(std::log(double(x.Tk)), Dims(2));
      const double sink = size < 1 ? values_of(options.sinks)[0] : -kInf;
      const ConstView v = x.numbers(size, x.v.shape());
      const PathResults got = x.run({x.q, x.k, v}, options, {.lse = x.dlse});
      const double sum = double(x.Tk) + std::exp(sink), weight = 1 / sum,
                   column = double(x.Tq) * weight;
      const double eps = wide ? 1e-13 : 1e-5;
      const auto expect = [&](const char* name, double want, double rounding) {
        const std::vector<double> all(static_cast<std::size_t>(got.at(name).element_count()), want);
        EXPECT_TRUE(
            compare(name, got.at(name), all, {rounding, 0}, "values of " + std::to_string(size)));
      };
      expect("out", double(x.Tk) * weight * values_of(v)[0], narrow ? 0.01 : eps);
      expect("weights", weight, eps);
      expect("lse", std::log(sum), eps);
      expect("row_max", std::max(sink, 0.0), eps);
      expect("entropy", -double(x.Tk) * weight * std::log(weight), eps);
      expect("column_sums", column, eps);
      expect("value_sums", column * values_of(v)[0] * std::sqrt(3.0), eps);
      if (size > 1) continue;
      std::vector<double> want(2, 0);
      for_each_element(x.dlse, [&](Index bh, Index, Index, double d) {
        want[static_cast<std::size_t>(bh % 2)] += d * std::exp(sink) * weight;
      });
      const double rounding = narrow ? 0.01 : eps;
      EXPECT_TRUE(compare("dsinks", got.at("dsinks"), want, {rounding, rounding}, "a sink"));
    }
  });
}

// ---- large and small numbers ----------------------------------------------------------------

// Row maxima are always subtracted: the larger of two scores takes all weight, equal keys share it
// equally, also in the backward pass.
TEST(PathEdges, HugeScoresShareTheWeight) {
  for_each_walk([](const Walk& walk) {
    if (walk.kind != ScoreKind::kDot || size_of(walk.dtype) < 4) return;  // ulps are too large
    PathRunner run(walk, Dot{});
    const auto column = [&](std::vector<double> values) { return convert(values, walk.dtype); };
    const auto rows = [](const Tensor& x) { return reshape(x.view(), {x.element_count(), 1}); };
    const Tensor one = column({1}), large = column({300}), two = column({1, 2});
    const Tensor unlike = column({300, 299.5});
    const PathResults far = run({rows(large), rows(unlike), rows(two)}, {.scale = 1.0});
    EXPECT_EQ(values_of(far.at("out")), std::vector<double>{1});
    EXPECT_EQ(values_of(far.at("lse")), std::vector<double>{90000});
    for (const double size : {1.0, 100.0, 6000.0, 1e9, 1e18}) {
      const Tensor q = column({size}), k = column(std::vector<double>(6, size));
      const PathResults got = run({rows(q), rows(k), rows(k)}, {.scale = 1.0}, {.out = rows(one)});
      EXPECT_TRUE(compare("dv", got.at("dv"), std::vector<double>(6, 1.0 / 6), {0, 1e-6},
                          "scores of " + std::to_string(size * size)));
    }
  });
}

// A weight of 1e-20 times a value of -1e-30 is smaller than any float32: the sum is 0, whether the
// keys are one chunk of the softmax or several that are merged.
TEST(PathEdges, ASumThatUnderflowsIsZeroWithoutASign) {
  for_each_dot_walk([](const Walk& walk) {
    PathRunner run(walk, Dot{});
    for (const Index keys : {2, 600}) {
      for (const Index rows : {1, 60}) {
        Tensor q(walk.dtype, {rows, 1}), k(walk.dtype, {keys, 1}), v(walk.dtype, {keys, 1});
        std::ranges::fill(q.values<float>(), 1.0F);
        std::ranges::fill(k.values<float>(), -46.0F);
        k.values<float>()[0] = 0;
        v.values<float>()[1] = -1e-30F;
        const PathResults got = run({q, k, v}, {.scale = 1.0});
        EXPECT_TRUE(same_bits(got.at("out"), Tensor(walk.dtype, {rows, 1}))) << keys << " keys";
      }
    }
  });
}

// If lse covers more keys than are given, weights are left as they are. If it is merely rounded,
// they are divided by their sum, so that their sum is 1.
TEST(WeightFactor, DividesOnlyWhatRoundingExplains) {
  using core::weight_factor;
  EXPECT_EQ(weight_factor(15.0F, 1.000001), 1.0F);  // not large
  EXPECT_EQ(weight_factor(2000.0F, 1.0001), static_cast<float>(1 / 1.0001));
  EXPECT_EQ(weight_factor(-2000.0F, 0.9999), static_cast<float>(1 / 0.9999));
  EXPECT_EQ(weight_factor(2000.0F, 0.99), 1.0F);
  EXPECT_EQ(weight_factor(1e7F, 0.0), 1.0F);
  EXPECT_EQ(weight_factor(4e8F, 1e-3), 1000.0F);  // a unit in the last place of this lse is 32
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float lse : {inf, -inf, nan}) EXPECT_EQ(weight_factor(lse, 1.01), 1.0F);
  EXPECT_EQ(weight_factor(2000.0F, double{nan}), 1.0F);
}

// ---- empty axes -------------------------------------------------------------------------------

// Sizes without any pair: no batch entries (in both inputs, or in one, to which the other
// broadcasts), no heads, no queries or no keys. With H = 0 the key heads have no query heads.
// Results do not depend on the contents of scratch memory, which an earlier call has written, and
// arrays without elements need no memory.
TEST(PathSizes, WithoutPairsEveryResultIsZero) {
  constexpr std::array<Index, 6> kSizes[] = {
      // B of q and k, H, G, Tq, Tk
      {0, 0, 2, 1, 5, 9}, {0, 1, 2, 1, 5, 9}, {1, 0, 1, 1, 5, 9}, {1, 1, 2, 1, 0, 9},
      {2, 2, 2, 1, 5, 0}, {1, 1, 1, 1, 0, 0}, {2, 2, 0, 1, 5, 9}, {1, 1, 0, 2, 5, 9}};
  for_each_walk([&](const Walk& walk) {
    const SeededCall dirt(1, 2, 1, 9, 70, 8, 3, walk);
    PathRunner run(walk, dirt.score.score());
    run.besides = PathRunner::Besides::kEverything;
    run(dirt.inputs(), {}, {.out = dirt.dout});
    const std::vector<Index> none;
    Tensor columns = normal({1, 2, 70}, 1, accumulator_of(walk.dtype));
    Context context = context_on(walk.path);
    attention(dirt.inputs(), {.score = dirt.score.score()}, {.column_sums = {none, columns}},
              context);
    EXPECT_EQ(values_of(columns), std::vector<double>(140, 0)) << "column sums of no queries";
    for (const auto& [Bq, Bk, H, G, Tq, Tk] : kSizes) {
      const SeededScore score = walk.score(H, 8);
      const auto tensor = [&](const Dims& shape) { return normal(shape, 3, walk.dtype); };
      const Tensor q = tensor({Bq, H, Tq, 8}), k = tensor({Bk, G, Tk, 8});
      const Tensor v = tensor({Bk, G, Tk, 3}), dout = tensor({std::min(Bq, Bk), H, Tq, 3});
      const Tensor bias = tensor({1, 1, Tq, Tk});
      const auto given = [](const Tensor& x) {
        return x.element_count() != 0 ? x.view()
                                      : View(static_cast<void*>(nullptr), x.dtype(), x.shape(),
                                             contiguous_strides(x.shape()));
      };
      const PathResults got = run(
          {given(q), given(k), given(v)},
          {.score = score.score(), .bias = given(bias), .masks = {Causal{}}}, {.out = given(dout)});
      for (const auto& [name, result] : got) {
        const double want = name == "lse" || name == "row_max" ? -kInf
                            : name == "top_keys"               ? -1
                                                               : 0;
        EXPECT_EQ(values_of(result),
                  std::vector<double>(static_cast<std::size_t>(result.element_count()), want))
            << name << ", B " << Bq << " and " << Bk << ", H " << H << ", G " << G << ", Tq " << Tq
            << ", Tk " << Tk;
      }
    }
  });
}

// If one axis is empty, a call takes no time or scratch memory for the other axes, even if their
// sizes are 2^40. dsinks is then 0, or with kAccumulate unchanged.
TEST(PathSizes, ResultsWithoutElementsTakeNeitherTimeNorMemory) {
  constexpr Index kMany = Index{1} << 40;
  const float one = 1;
  float* const none = nullptr;
  const auto input = [&](const Dims& shape) { return ConstView(&one, shape, {0, 0, 0, 0}); };
  const Tensor w = normal({4, 4}, 1), u = normal(Dims(4), 2), sinks = normal(Dims(2), 3);
  const std::vector<int> no_rows;
  for_each_walk([&](const Walk& walk) {
    if (walk.dtype != DType::kFloat32) return;
    const Score score = walk.kind == ScoreKind::kBilinear   ? Score(Bilinear{w})
                        : walk.kind == ScoreKind::kAdditive ? Score(Additive{w, w, u, u})
                        : walk.kind == ScoreKind::kCosine   ? Score(Cosine{})
                                                            : Score(ScaledDot{});
    Context context = context_on(walk.path);
    const auto forward = [&](const Dims& q, const Dims& k, const Outputs& outputs) {
      attention({input(q), input(k), input(k)}, {.score = score}, outputs, context);
    };
    forward({kMany, 0, 5, 4}, {1, 1, 9, 4}, {.out = View(none, {kMany, 0, 5, 4})});
    forward({1, 0, 5, 4}, {1, kMany, 9, 4}, {.out = View(none, {1, 0, 5, 4})});
    forward({kMany, 2, 0, 4}, {1, 2, 0, 4},
            {.out = View(none, {kMany, 2, 0, 4}), .column_sums = View(none, {kMany, 2, 0})});
    forward({kMany, 2, 5, 4}, {1, 2, 0, 4}, {.column_sums = View(none, {kMany, 2, 0})});
    forward({kMany, 2, 0, 4}, {1, 2, 9, 4}, {.entropy = View(none, {kMany, 2, 0})});
    forward({kMany, 2, 5, 4}, {1, 2, 0, 4}, {.value_sums = View(none, {kMany, 2, 0})});
    forward({kMany, 0, 5, 4}, {1, 1, 9, 4}, {.pooled = View(none, {kMany, 0, 3, 3})});
    forward({kMany, 2, 5, 4}, {1, 2, 9, 4}, {.weights = {no_rows, View(none, {kMany, 2, 0, 9})}});
    // Requesting more of the largest weights than there are needs no scratch memory.
    constexpr Index kMost = Index{1} << 59;
    forward({1, 1, 0, 4}, {1, 1, 3, 4},
            {.top = {kMost, View(none, {1, 1, 0, kMost}),
                     View(static_cast<std::int64_t*>(nullptr), {1, 1, 0, kMost})}});
    const Inputs inputs{input({kMany, 2, 0, 4}), input({kMany, 1, 5, 4}), input({kMany, 1, 5, 4})};
    const Options options{.score = score, .sinks = sinks};
    const View empty(none, {kMany, 2, 0, 4});
    const Saved saved{empty, ConstView(none, {kMany, 2, 0})};
    std::vector<float> dsinks{3, 4, 5, 6};
    InputGradients to{.q = empty, .sinks = View(dsinks.data(), Dims(2), Dims(2))};
    attention_backward(inputs, options, saved, {.out = empty}, to, context);
    EXPECT_EQ(dsinks, (std::vector<float>{0, 4, 0, 6}));
    dsinks[0] = 5;
    to.write = Write::kAccumulate;
    attention_backward(inputs, options, saved, {.out = empty}, to, context);
    EXPECT_EQ(dsinks, (std::vector<float>{5, 4, 0, 6}));
    const Plan plan(inputs, options, context);
    EXPECT_EQ(plan.scratch_bytes() + plan.backward_scratch_bytes(), 0U);
  });
}

// ---- long axes --------------------------------------------------------------------------------

// `top` may list all keys, in order of their weights, equal weights by ascending key. This would
// take hours if each new weight moved all those found before.
TEST(PathSizes, TopWeightsMayBeThoseOfAllOfManyKeys) {
  constexpr Index kKeys = 300'000;
  Tensor q(DType::kFloat32, {1, 1});
  Tensor k(DType::kFloat32, {kKeys, 1});
  q.values<float>()[0] = 1;
  for (Index j = 0; j < kKeys; ++j) {
    k.values<float>()[static_cast<std::size_t>(j)] =
        static_cast<float>(j * 7919 % kKeys / 10) * 3e-4F;
  }
  for_each_dot_walk([&](const Walk& walk) {
    for (const Index most : {Index{5}, kKeys + 3}) {
      Tensor all(DType::kFloat32, {1, kKeys});
      Tensor weights(DType::kFloat32, {1, most});
      Tensor keys(DType::kInt32, {1, most});
      Context context = context_on(walk.path);
      attention({q, k}, {}, {.top = {most, weights, keys}, .weights = View(all)}, context);
      const std::span<const float> weight = all.values<float>();
      std::vector<std::int32_t> order(weight.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater(),
                               [&](std::int32_t j) { return weight[static_cast<std::size_t>(j)]; });
      order.resize(static_cast<std::size_t>(most), -1);
      std::vector<float> want;
      for (const std::int32_t j : order)
        want.push_back(j < 0 ? 0 : weight[static_cast<std::size_t>(j)]);
      EXPECT_TRUE(std::ranges::equal(keys.values<std::int32_t>(), order)) << most;
      EXPECT_TRUE(std::ranges::equal(weights.values<float>(), want)) << most;
    }
  });
}

// If batch entries share keys, dk and dv are sums over the entries, bit-identical with sums of the
// gradients of copied keys. At full scale the last shape is too large to store dk for each entry.
TEST(PathSizes, GradientsOfSharedKeysAreSumsOverEntries) {
  struct Shape {
    Index B, H, Tq, Tk, D;
  };
  for (const Shape& s : {Shape{3, 2, 140, 200, 5}, Shape{at_scale(600, 50), 1, 1, 500, 64}}) {
    const Tensor q = normal({s.B, s.H, s.Tq, s.D}, 1);  // q is dout, too
    const Tensor k = normal({1, 1, s.Tk, s.D}, 2), v = normal({1, 1, s.Tk, s.D}, 3);
    const Dims each{s.B, 1, s.Tk, s.D};
    const Tensor own_k = contiguous(broadcast_to(k.view(), each));
    const Tensor own_v = contiguous(broadcast_to(v.view(), each));
    for_each_dot_walk([&](const Walk& walk) {
      if (s.B > 3 && walk.path == kReferencePath) return;  // the reference is slow
      Context context = context_on(walk.path, 2);
      const auto gradients = [&](const Inputs& inputs) {
        std::map<std::string, Tensor> x;
        const auto like = [](const ConstView& of) { return Tensor(of.dtype(), of.shape()); };
        x["dq"] = like(inputs.q), x["dk"] = like(inputs.k), x["dv"] = like(inputs.v);
        Tensor out = like(q), lse(walk.dtype, {s.B, s.H, s.Tq});
        attention(inputs, {}, {.out = out, .lse = lse}, context);
        attention_backward(inputs, {}, {out, lse}, {.out = q},
                           {.q = x["dq"], .k = x["dk"], .v = x["dv"]}, context);
        return x;
      };
      const auto shared = gradients({q, k, v}), apart = gradients({q, own_k, own_v});
      EXPECT_TRUE(same_bits(shared.at("dq"), apart.at("dq")));
      for (const char* name : {"dk", "dv"}) {
        Tensor total(walk.dtype, k.shape());
        const auto to = total.values<float>();
        const auto from = apart.at(name).values<float>();
        for (std::size_t n = 0; n < from.size(); ++n) to[n % to.size()] += from[n];
        EXPECT_TRUE(same_bits(shared.at(name), total)) << name << ", B " << s.B;
      }
    });
  }
}

}  // namespace
}  // namespace qkv::test
