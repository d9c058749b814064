// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/error.h>
#include <qkv/expression.h>
#include <qkv/target.h>
#include <qkv/tensor.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/parts.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// A call on a part of longer sequences (Shard) agrees with the call on the whole sequences,
// whatever the options: rows of a part of the queries are bit-identical, results of parts of the
// keys merge into those of all keys, and steps over consecutive parts of the keys are
// bit-identical.
namespace qkv::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMasked = -kInf;
// The largest absolute difference between elements. Equal infinities, or two NaNs, do not differ;
// an infinity or NaN differs from anything else by infinity, and so do arrays of different lengths.
double largest_error(const ConstView& a, const ConstView& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  double largest = x.size() == y.size() ? 0 : kInf;
  for (std::size_t n = 0; n < std::min(x.size(), y.size()); ++n) {
    if (x[n] == y[n] || (std::isnan(x[n]) && std::isnan(y[n]))) continue;
    const double error = std::abs(x[n] - y[n]);
    if (std::isnan(error)) return kInf;
    largest = std::max(largest, error);
  }
  return largest;
}

struct Rows {
  Tensor out, lse, row_max;
};

// Returns zeroed tensors for the results of queries i.
Rows rows_of(const Whole& x, const Part& i) {
  const DType sums = accumulator_of(x.dtype);
  const Index count = i.end - i.begin;
  return {Tensor(x.dtype, {x.B, x.H, count, x.E}), Tensor(sums, {x.B, x.H, count}),
          Tensor(sums, {x.B, x.H, count})};
}

Rows run(const Whole& x, const OptionsOf& options, const Part& i, const Part& j, Context& context) {
  Options of_part = options(x, i, j);
  of_part.score = x.score.score();
  Rows rows = rows_of(x, i);
  attention(x.inputs(i, j), of_part, {.out = rows.out, .lse = rows.lse, .row_max = rows.row_max},
            context);
  return rows;
}

ConstView part_of(const Tensor& x, int axis, const Part& part) {
  return slice(ConstView(x.view()), axis, part.begin, part.end);
}

// Calls test(whole, name, options, context) for every score on its paths: dot products with all
// options, other scores with all options on their first path and with two options on the others.
// Brief runs leave out more.
template <class F>
void for_each_call(Index queries, Index keys, const F& test) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const std::string& path : all_paths(kind)) {
      if (kind != ScoreKind::kDot && path == kReferencePath && is_brief()) continue;
      const Whole x(queries, keys, DType::kFloat32, kind);
      for (const auto& [name, options] : options_by_name()) {
        const bool again = kind != ScoreKind::kDot && name != "plain" && name != "all together";
        if (again && (is_brief() || path != all_paths(kind).front())) continue;
        SCOPED_TRACE(path + ", " + std::string(name_of(kind)) + ", " + name);
        Context context = context_on(path);
        test(x, name, options, context);
      }
    }
  }
}

// True if QKV_TARGET is set, so that these tests repeat those of another run, and the scale is not
// 100 percent.
bool is_reduced_rerun() { return std::getenv("QKV_TARGET") != nullptr && !is_thorough(); }

TEST(Shards, QueriesAreRowsOfTheWholeCall) {
  int compared = 0;
  for_each_call(
      70, 640, [&](const Whole& x, const std::string&, const OptionsOf& options, Context& context) {
        const Rows all = run(x, options, x.queries(), x.keys(), context);
        for (const Part& i : {Part{0, 1}, Part{5, 61}, Part{64, 70}}) {
          const Rows some = run(x, options, i, x.keys(), context);
          EXPECT_TRUE(same_bits(part_of(all.out, 2, i), some.out.view())) << i.begin;
          EXPECT_TRUE(same_bits(part_of(all.lse, 2, i), some.lse.view())) << i.begin;
          EXPECT_TRUE(same_bits(part_of(all.row_max, 2, i), some.row_max.view())) << i.begin;
          ++compared;
        }
      });
  EXPECT_GT(compared, 50);
}

// The options, with sinks in the first part of the keys only: merge() requires that exactly one
// part has sinks.
OptionsOf with_sinks_in_first_part(const OptionsOf& options) {
  return [options](const Whole& x, const Part& i, const Part& j) {
    Options of_part = options(x, i, j);
    if (j.begin != 0) of_part.sinks = {};
    return of_part;
  };
}

// The largest finite |lse|. The rounding error of an lse is a relative error of its row's weights.
double largest_lse(const Rows& rows) {
  double largest = 0;
  for (const double x : values_of(rows.lse.view())) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

TEST(Shards, PartsOfTheKeysMergeAnywhere) {
  for_each_call(
      35, 900, [&](const Whole& x, const std::string&, const OptionsOf& options, Context& context) {
        const Rows all = run(x, options, x.queries(), x.keys(), context);
        const double bound = 3e-6 + 2e-7 * largest_lse(all);
        const bool drops = options(x, x.queries(), x.keys()).dropout.p > 0;
        for (const std::vector<Index>& cuts :
             {std::vector<Index>{0, 1, 300, 777, 900}, std::vector<Index>{0, 4, 512, 772, 900}}) {
          // With dropout, parts begin at multiples of 4, as those of the second list do.
          if (drops && cuts[1] % 4 != 0) continue;
          Rows merged =
              run(x, with_sinks_in_first_part(options), x.queries(), {0, cuts[1]}, context);
          for (std::size_t n = 1; n + 1 < cuts.size(); ++n) {
            const Rows more = run(x, with_sinks_in_first_part(options), x.queries(),
                                  {cuts[n], cuts[n + 1]}, context);
            merge(merged.out, merged.lse, more.out, more.lse);
          }
          EXPECT_LE(largest_error(merged.out.view(), all.out.view()), bound);
          EXPECT_LE(largest_error(merged.lse.view(), all.lse.view()), bound);
        }
      });
}

// The memory of a softmax state, with the values that it has before the first key.
struct State {
  Tensor max, sum, acc;

  State(const Whole& x, const Part& i)
      : max(accumulator_of(x.dtype), {x.B, x.H, i.end - i.begin}),
        sum(accumulator_of(x.dtype), {x.B, x.H, i.end - i.begin}),
        acc(accumulator_of(x.dtype), {x.B, x.H, i.end - i.begin, x.E}) {
    for (Index n = 0; n < max.element_count(); ++n) {
      core::store(max.dtype(), max.view().data(), n, kMasked);
    }
  }
  AttentionState views() { return {max.view(), sum.view(), acc.view()}; }
};

Rows run_in_steps(const Whole& x, const OptionsOf& options, const Part& i,
                  const std::vector<Index>& cuts, Context& context) {
  State state(x, i);
  Rows rows = rows_of(x, i);
  for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
    const Part j{cuts[n], cuts[n + 1]};
    Options of_part = options(x, i, j);
    of_part.score = x.score.score();
    Outputs outputs;
    if (n + 2 == cuts.size()) {
      outputs = {.out = rows.out, .lse = rows.lse, .row_max = rows.row_max};
    }
    attention_step(x.inputs(i, j), of_part, state.views(), outputs, context);
  }
  return rows;
}

void expect_same_rows(const Rows& all, const Part& i, const Rows& some) {
  EXPECT_TRUE(same_bits(part_of(all.out, 2, i), some.out.view()));
  EXPECT_TRUE(same_bits(part_of(all.lse, 2, i), some.lse.view()));
  EXPECT_TRUE(same_bits(part_of(all.row_max, 2, i), some.row_max.view()));
}

TEST(Shards, StepsAreOneCallBitForBit) {
  for (const Index queries : {2, 20, 130}) {
    if (is_brief() && queries != 20) continue;
    if (is_reduced_rerun() && queries == 130) continue;
    for_each_call(
        queries, 1300,
        [&](const Whole& x, const std::string&, const OptionsOf& options, Context& context) {
          const Rows all = run(x, options, x.queries(), x.keys(), context);
          expect_same_rows(all, x.queries(),
                           run_in_steps(x, options, x.queries(), {0, 512, 1024, 1300}, context));
          const Part some{queries / 3, queries - queries / 4};
          expect_same_rows(all, some, run_in_steps(x, options, some, {0, 1024, 1300}, context));
        });
  }
}

TEST(Shards, StepsAreOneCallForEveryTypeAndWidth) {
  for (const DType dtype : {DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const std::string& path : all_paths(ScoreKind::kDot, dtype)) {
      for (const Index width : {17, 130}) {
        SCOPED_TRACE(path + ", " + std::string(name_of(dtype)) + ", " + std::to_string(width));
        const Whole x(37, 1100, dtype, ScoreKind::kDot, width);
        Context context = context_on(path, 2);
        for (const auto& [name, options] : options_by_name()) {
          if (name != "causal" && name != "sinks") continue;
          SCOPED_TRACE(name);
          const Rows all = run(x, options, x.queries(), x.keys(), context);
          expect_same_rows(all, x.queries(),
                           run_in_steps(x, options, x.queries(), {0, 512, 1100}, context));
        }
      }
    }
  }
}

// A score of +inf or NaN makes its row NaN, and an empty row is 0, whichever step has the key.
TEST(Shards, StepsKeepNonFiniteAndEmptyRows) {
  for (const std::string& path : all_paths()) {
    SCOPED_TRACE(path);
    Whole x(9, 1100, DType::kFloat32);
    const auto set = [](Tensor& to, Index row, double value) {
      const View rows = slice(to.view(), 2, row, row + 1);
      core::store(to.dtype(), slice(slice(rows, 0, 0, 1), 1, 0, 1).data(), 0, value);
    };
    set(x.q, 3, std::nan(""));
    set(x.k, 700, std::numeric_limits<double>::infinity());
    set(x.v, 20, std::nan(""));
    const OptionsOf options = [](const Whole& whole, const Part& i, const Part&) {
      return Options{
          .masks = {KeyLengths{slice(ConstView(whole.lengths.view()), 1, i.begin, i.end)}},
          .sinks = whole.sinks};
    };
    x.lengths.values<Index>()[0] = 0;
    x.lengths.values<Index>()[1] = 20;
    Context context = context_on(path);
    const Rows all = run(x, options, x.queries(), x.keys(), context);
    EXPECT_TRUE(std::isnan(all.lse.values<float>()[3]));
    EXPECT_EQ(all.out.values<float>()[0], 0.0F);
    expect_same_rows(all, x.queries(),
                     run_in_steps(x, options, x.queries(), {0, 512, 1024, 1100}, context));
  }
}

// ---- gradients --------------------------------------------------------------------------------

TEST(Shards, GradientsOfPartsOfTheKeysAddUp) {
  for (const std::string& path : all_backward_paths()) {
    const Whole x(70, 390, DType::kFloat64);
    Context context = context_on(path);
    for (const auto& [name, options] : options_by_name()) {
      const bool is_first = path == all_backward_paths().front();
      if (!is_first && (is_brief() || (!is_thorough() && name != "all together"))) continue;
      SCOPED_TRACE(path + ", " + name);
      const Rows all = run(x, options, x.queries(), x.keys(), context);
      struct All {
        Tensor q, k, v, bias, alibi, sinks;
      };
      const auto gradients = [&](const Part& i, const Part& j) {
        const Options of_part = options(x, i, j);
        const Inputs inputs = x.inputs(i, j);
        const auto like = [](const ConstView& source) {
          return source.given() ? Tensor(source.dtype(), source.shape()) : Tensor();
        };
        All to{like(inputs.q),     like(inputs.k),      like(inputs.v),
               like(of_part.bias), like(of_part.alibi), like(of_part.sinks)};
        attention_backward(inputs, of_part, {part_of(all.out, 2, i), part_of(all.lse, 2, i)},
                           {.out = part_of(x.dout, 2, i)},
                           {.q = to.q,
                            .k = to.k,
                            .v = to.v,
                            .bias = to.bias,
                            .alibi = to.alibi,
                            .sinks = to.sinks},
                           context);
        return to;
      };
      const auto check = [&](const ConstView& want, const ConstView& got, const char* what) {
        if (want.given()) {
          EXPECT_LE(largest_error(got, want), 1e-11) << what;
        }
      };
      const auto add = [](Tensor& to, const Tensor& more) {
        for (Index n = 0; n < to.element_count(); ++n) {
          to.values<double>()[static_cast<std::size_t>(n)] +=
              more.values<double>()[static_cast<std::size_t>(n)];
        }
      };
      const All want = gradients(x.queries(), x.keys());
      const Part parts[] = {{0, 4}, {4, 132}, {132, 390}};
      Tensor dq(DType::kFloat64, x.q.shape());
      Tensor dalibi(DType::kFloat64, x.slopes.shape());
      for (const Part& j : parts) {
        const All got = gradients(x.queries(), j);
        check(part_of(want.k, 2, j), got.k.view(), "dk");
        check(part_of(want.v, 2, j), got.v.view(), "dv");
        if (got.bias.view().given()) check(part_of(want.bias, 2, j), got.bias.view(), "dbias");
        if (got.sinks.view().given()) check(want.sinks.view(), got.sinks.view(), "dsinks");
        add(dq, got.q);
        if (got.alibi.view().given()) add(dalibi, got.alibi);
      }
      check(want.q.view(), dq.view(), "dq");
      if (want.alibi.view().given()) check(want.alibi.view(), dalibi.view(), "dalibi");

      // Parts of the queries have their own dq, and their dk and dv add up.
      Tensor dk(DType::kFloat64, x.k.shape());
      Tensor dv(DType::kFloat64, x.v.shape());
      for (const Part& i : {Part{0, 50}, Part{50, 70}}) {
        const All got = gradients(i, x.keys());
        EXPECT_TRUE(same_bits(part_of(want.q, 2, i), got.q.view())) << "dq";
        add(dk, got.k);
        add(dv, got.v);
      }
      check(want.k.view(), dk.view(), "dk of parts of the queries");
      check(want.v.view(), dv.view(), "dv of parts of the queries");
    }
  }
}

// Before a call computes anything, it checks the indices of captured arrays at the positions that
// its keys have in the whole sequence.
TEST(Shards, IndicesAreCheckedAtTheirPositions) {
  const Whole x(4, 640, DType::kFloat32);
  const Tensor table = normal({600}, 1);
  const Symbols at;
  const Options options{.mods = {score_mod(at.s + Captured(table, "table")(at.j))}};
  Rows rows = rows_of(x, x.queries());
  attention(x.inputs(x.queries(), {400, 600}), options, {.out = rows.out});
  try {
    attention(x.inputs(x.queries(), {512, 640}), options, {.out = rows.out});
    FAIL() << "index 600 of 600 elements";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("reads table at index 600"), std::string::npos)
        << error.what();
  }
}

// A call on heads 1 and 3 alone has the dropout and the results that these heads have in the whole
// call.
TEST(Shards, SomeHeadsAreThoseOfTheWholeCall) {
  const Whole x(300, 700, DType::kFloat32, ScoreKind::kDot, 17, 4);
  const auto odd_heads = [](const Tensor& all, int axis = 1) {
    return slice(ConstView(all.view()), axis, 1, 4, 2);
  };
  for (const std::string& path : all_backward_paths()) {
    for (const auto& [name, options_of] : options_by_name()) {
      if (name != "dropout" && name != "function" && name != "expression" && name != "known keys") {
        continue;
      }
      SCOPED_TRACE(path + ", " + name);
      Context context = context_on(path);
      Options options = options_of(x, x.queries(), x.keys());
      const Captured relative(x.relative, "relative");
      if (name == "expression") {
        const Symbols at;
        options.mods = {score_mod(at.s + relative(at.h, at.j - at.i + (x.Tq - 1)))};
      }
      const Rows all = run(
          x, [&](const Whole&, const Part&, const Part&) { return options; }, x.queries(), x.keys(),
          context);
      Inputs inputs{odd_heads(x.q), odd_heads(x.k), odd_heads(x.v)};
      inputs.shard = Shard{0, x.Tq, 0, x.Tk, 1, 2};
      Tensor out(x.dtype, {x.B, 2, x.Tq, x.E}), lse(DType::kFloat32, {x.B, 2, x.Tq});
      attention(inputs, options, {.out = out, .lse = lse}, context);
      EXPECT_TRUE(same_bits(odd_heads(all.out), out.view()));
      EXPECT_TRUE(same_bits(odd_heads(all.lse), lse.view()));

      const auto gradients = [&](const Inputs& in, ConstView of_out, ConstView of_lse,
                                 ConstView dout, Tensor& dk, Tensor& captured) {
        InputGradients to{.k = dk};
        if (name == "expression") to.captured = {{relative, captured.view()}};
        attention_backward(in, options, {of_out, of_lse}, {.out = dout}, to, context);
      };
      Tensor want(x.dtype, x.k.shape()), got(x.dtype, {x.B, 2, x.Tk, x.D});
      Tensor want_table(x.relative.dtype(), x.relative.shape());
      Tensor got_table(x.relative.dtype(), x.relative.shape());
      gradients(x.inputs(), all.out, all.lse, x.dout, want, want_table);
      gradients(inputs, out, lse, odd_heads(x.dout), got, got_table);
      EXPECT_TRUE(same_bits(odd_heads(want), got.view()));
      EXPECT_LE(largest_error(odd_heads(want_table, 0), odd_heads(got_table, 0)), 1e-4);
      // Heads 0 and 2 get no gradient.
      EXPECT_EQ(largest_error(slice(got_table.view(), 0, 0, 4, 2),
                              Tensor(DType::kFloat32, {2, x.Tq + x.Tk})),
                0);
    }
  }
}

TEST(Shards, HeadIndicesAreChecked) {
  const Whole x(4, 640, DType::kFloat32, ScoreKind::kDot, 17, 4);
  const Tensor table = normal({6}, 1);
  const Symbols at;
  const Options options{.mods = {score_mod(at.s + Captured(table, "table")(at.h))}};
  Rows rows = rows_of(x, x.queries());
  const auto message = [&](Index first, Index step) -> std::string {
    Inputs inputs = x.inputs();
    inputs.shard = Shard{0, 4, 0, 640, first, step};
    try {
      attention(inputs, options, {.out = rows.out});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(2, 1), "");
  EXPECT_NE(message(0, 2).find("reads table at index 6"), std::string::npos) << message(0, 2);
  EXPECT_NE(message(3, 1).find("reads table at index 6"), std::string::npos) << message(3, 1);
  EXPECT_EQ(message(-1, 1),
            "attention: shard must have a first_head of 0 or more and a head_step of 1 or more, "
            "with all heads below 2^31, got -1 and 1 for H = 4");
  EXPECT_NE(message((Index{1} << 31) - 3, 1).find("head_step"), std::string::npos);
  EXPECT_NE(message(0, 0).find("head_step"), std::string::npos);
  EXPECT_NE(message(0, Index{1} << 31).find("head_step"), std::string::npos);
}

// A score mod reads a captured array at positions in the whole sequences, so that gradients of the
// array from all shards add up to that of the whole call.
TEST(Shards, GradientsOfCapturedArraysAddUp) {
  const Whole x(140, 300, DType::kFloat64);
  for (const std::string& path : all_backward_paths()) {
    SCOPED_TRACE(path);
    Context context = context_on(path);
    const Symbols at;
    const Captured relative(x.relative, "relative");
    const Options options{.mods = {score_mod(at.s + relative(at.h, at.j - at.i + (x.Tq - 1)))},
                          .masks = {Causal{}}};
    Rows all = rows_of(x, x.queries());
    attention(x.inputs(), options, {.out = all.out, .lse = all.lse}, context);
    const auto gradient = [&](const Part& i, const Part& j, Write write, Tensor& to) {
      InputGradients gradients;
      gradients.captured = {{relative, to.view()}};
      gradients.write = write;
      attention_backward(x.inputs(i, j), options, {part_of(all.out, 2, i), part_of(all.lse, 2, i)},
                         {.out = part_of(x.dout, 2, i)}, gradients, context);
    };
    Tensor want(DType::kFloat64, x.relative.shape());
    gradient(x.queries(), x.keys(), Write::kOverwrite, want);
    Tensor sum(DType::kFloat64, x.relative.shape());
    for (const Part& i : {Part{0, 70}, Part{70, 140}}) {
      for (const Part& j : {Part{0, 133}, Part{133, 300}}) {
        gradient(i, j, Write::kAccumulate, sum);
      }
    }
    EXPECT_LE(largest_error(sum, want), 1e-11);
  }
}

// Checks that sums of gradients that are continued from shard to shard have the bits of one call:
// dq always, dk and dv if H = G. (Otherwise query heads that share a key head are summed in another
// order.)
void check_gradient_steps(const Whole& x, const OptionsOf& options, Context& context) {
  const DType sums = accumulator_of(x.dtype);
  const Rows all = run(x, options, x.queries(), x.keys(), context);
  const Tensor dlse = normal({x.B, x.H, x.Tq}, 40, sums);
  Tensor dq(x.dtype, x.q.shape()), dk(x.dtype, x.k.shape()), dv(x.dtype, x.v.shape());
  attention_backward(x.inputs(), options(x, x.queries(), x.keys()), {all.out, all.lse},
                     {.out = x.dout, .lse = dlse}, {.q = dq, .k = dk, .v = dv}, context);
  const Part queries[] = {{0, 512}, {512, x.Tq}};
  const Part keys[] = {{0, 512}, {512, 1024}, {1024, x.Tk}};
  Tensor weights(DType::kFloat64, {x.B, x.H, x.Tq});
  Tensor q(sums, x.q.shape()), k(sums, x.k.shape()), v(sums, x.v.shape());
  const auto part = [](Tensor& to, const Part& rows) {
    return slice(to.view(), 2, rows.begin, rows.end);
  };
  for (const Part& i : queries) {
    for (const Part& j : keys) {
      Inputs inputs = x.inputs(i, j);
      inputs.v = {};
      add_weight_sums(inputs, options(x, i, j), part_of(all.lse, 2, i), part(weights, i), context);
    }
  }
  for (const Part& i : queries) {
    for (const Part& j : keys) {
      attention_backward_step(
          x.inputs(i, j), options(x, i, j),
          {part_of(all.out, 2, i), part_of(all.lse, 2, i), part_of(weights, 2, i)},
          {.out = part_of(x.dout, 2, i), .lse = part_of(dlse, 2, i)},
          {part(q, i), part(k, j), part(v, j)}, context);
    }
  }
  EXPECT_TRUE(same_bits(dq.view(), convert(q.view(), x.dtype).view())) << "dq";
  if (x.H != x.G) return;
  EXPECT_TRUE(same_bits(dk.view(), convert(k.view(), x.dtype).view())) << "dk";
  EXPECT_TRUE(same_bits(dv.view(), convert(v.view(), x.dtype).view())) << "dv";
}

// The first path runs all options with G = 4, and "alibi", "sinks" and "window" with G = 2. Other
// paths run these three if the run is thorough, else only "alibi", and nothing if it is brief. A
// reduced rerun has "alibi" with G = 4 and "window" with G = 2. Input transforms have no steps.
TEST(Shards, StepsOfGradientsAreOneCallBitForBit) {
  int large = 0;
  for (const std::string& path : all_backward_paths()) {
    const bool is_first = path == all_backward_paths().front();
    if (!is_first && is_brief()) continue;
    for (const Index key_heads : {4, 2}) {
      const Whole x(640, 1100, DType::kFloat32, ScoreKind::kDot, 17, key_heads);
      for (const auto& [name, options] : options_by_name()) {
        const bool runs_everywhere = name == "alibi" || name == "sinks" || name == "window";
        if ((!is_first || key_heads == 2) && !runs_everywhere) continue;
        if (is_reduced_rerun() && name != (key_heads == 4 ? "alibi" : "window")) continue;
        if (!is_first && !is_thorough() && name != "alibi") continue;
        const Options of_all = options(x, x.queries(), x.keys());
        if (of_all.rotary || of_all.qk_norm) continue;
        SCOPED_TRACE(path + ", " + name + ", G = " + std::to_string(key_heads));
        Context context = context_on(path, 2);
        large += largest_lse(run(x, options, x.queries(), x.keys(), context)) > 16 ? 1 : 0;
        check_gradient_steps(x, options, context);
      }
    }
  }
  EXPECT_GT(large, 0);  // calls with rows that are corrected for the rounding of lse
  for (const std::string& path : bfloat16_paths()) {
    SCOPED_TRACE(path);
    Context context = context_on(path);
    const auto causal = [](const Whole&, const Part&, const Part&) {
      return Options{.masks = {Causal{}}};
    };
    check_gradient_steps(Whole(640, 1100, DType::kBFloat16, ScoreKind::kDot, 64, 4), causal,
                         context);
  }
}

// ---- plans and merge ------------------------------------------------------------------------

TEST(Shards, APlanTakesOneShardAfterAnother) {
  const Whole x(20, 600, DType::kFloat32);
  Context context;
  const Options options{.masks = {Causal{}}};
  const Part all{0, 20};
  Plan plan(x.inputs(all, {0, 300}), options, context);
  for (const Part& j : {Part{0, 300}, Part{300, 600}, Part{0, 300}}) {
    const Rows want = run(
        x, [&](const Whole&, const Part&, const Part&) { return options; }, all, j, context);
    Rows got = rows_of(x, all);
    plan.run(x.inputs(all, j), {.out = got.out, .lse = got.lse});
    EXPECT_TRUE(same_bits(want.out.view(), got.out.view())) << j.begin;
  }
}

TEST(Merge, TakesEmptyNonFiniteAndStridedRows) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  struct Row {
    float lse, lse2, want;
  };
  const std::vector<Row> rows{{-inf, -inf, -inf},    {1, -inf, 1},  {-inf, 2, 2},
                              {nan, 1, nan},         {1, inf, nan}, {inf, -inf, inf},
                              {0, 0, std::log(2.0F)}};
  const auto count = static_cast<Index>(rows.size());
  Tensor out(DType::kFloat32, {count, 4}), out2(DType::kFloat32, {count, 2});
  Tensor lse(DType::kFloat32, {count}), lse2(DType::kFloat32, {count});
  for (Index n = 0; n < count; ++n) {
    const auto r = static_cast<std::size_t>(n);
    lse.values<float>()[r] = rows[r].lse;
    lse2.values<float>()[r] = rows[r].lse2;
    // Empty rows do not count, whatever they hold.
    for (Index c = 0; c < 4; ++c) {
      out.values<float>()[4 * r + static_cast<std::size_t>(c)] = rows[r].lse == -inf ? nan : 1;
    }
    for (Index c = 0; c < 2; ++c) {
      out2.values<float>()[2 * r + static_cast<std::size_t>(c)] = rows[r].lse2 == -inf ? nan : 3;
    }
  }
  const View strided(out.view().data(), DType::kFloat32, {count, 2}, {4, 2});
  merge(strided, lse, out2, lse2);
  const float want[] = {nan, 1, 3, nan, nan, 1, 2};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(r);
    const float got = lse.values<float>()[r];
    EXPECT_TRUE(got == rows[r].want || (std::isnan(got) && std::isnan(rows[r].want))) << got;
    for (const std::size_t c : {0, 2}) {
      const float value = out.values<float>()[4 * r + c];
      EXPECT_TRUE(value == want[r] || std::isnan(want[r])) << value;
      EXPECT_EQ(std::isnan(value), std::isnan(want[r])) << value;
    }
    EXPECT_TRUE(out.values<float>()[4 * r + 1] == 1 || rows[r].lse == -inf);
  }
}

TEST(Merge, TakesEveryType) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    const DType sums = accumulator_of(dtype);
    Tensor out = normal({3, 5, 8}, 1, dtype), lse = normal({3, 5}, 2, sums);
    const Tensor out2 = normal({3, 5, 8}, 3, dtype), lse2 = normal({3, 5}, 4, sums);
    const std::vector<double> a = values_of(out), b = values_of(out2);
    const std::vector<double> x = values_of(lse), y = values_of(lse2);
    merge(out, lse, out2, lse2);
    const std::vector<double> got = values_of(out), got_lse = values_of(lse);
    const double ulp = dtype == DType::kFloat64   ? 1e-15
                       : dtype == DType::kFloat32 ? 3e-7
                       : dtype == DType::kFloat16 ? 1e-3
                                                  : 8e-3;
    for (std::size_t n = 0; n < got.size(); ++n) {
      const double first = std::exp(x[n / 8]), second = std::exp(y[n / 8]);
      EXPECT_NEAR(got[n], (first * a[n] + second * b[n]) / (first + second), 3 * ulp) << n;
      EXPECT_NEAR(got_lse[n / 8], std::log(first + second), sums == dtype ? 4 * ulp : 1e-6) << n;
    }
  }
}

}  // namespace
}  // namespace qkv::test
