// SPDX-License-Identifier: Apache-2.0
// Compares attention of a sequence that is divided among ranks with one process. out and lse are
// bit-identical; so are dq, dk and dv of dot products without input transforms.
#include "ranks/ring.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>
#include <qkv/ring.h>

#include "ranks/collective.h"
#include "tests/attention/parts.h"
#include "tests/ranks/thread_ranks.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// A way to divide rows among ranks, and the parts that each rank has.
struct Division {
  Sharding sharding;
  std::vector<std::vector<Part>> parts;

  int ranks() const { return static_cast<int>(parts.size()); }
  Index total() const {
    Index total = 0;
    for (const auto& of_rank : parts) {
      for (const Part& part : of_rank) total += part.end - part.begin;
    }
    return total;
  }
};

Division contiguous_parts(const std::vector<Index>& lengths) {
  Division division{kContiguous, {}};
  Index begin = 0;
  for (const Index length : lengths) {
    division.parts.push_back({{begin, begin + length}});
    begin += length;
  }
  return division;
}

Division zigzag_parts(int ranks, Index part, Index zigzags = 1) {
  Division division{{zigzags}, std::vector<std::vector<Part>>(static_cast<std::size_t>(ranks))};
  for (Index n = 0; n < zigzags; ++n) {
    for (Index r = 0; r < ranks; ++r) {
      for (const Index of_span : {r, 2 * ranks - 1 - r}) {
        const Index begin = (2 * ranks * n + of_span) * part;
        division.parts[static_cast<std::size_t>(r)].push_back({begin, begin + part});
      }
    }
  }
  return division;
}

// Returns the rows in `parts`, numbered along `axis`, one part after the other.
Tensor rows_of(const ConstView& x, int axis, const std::vector<Part>& parts) {
  Dims shape = x.shape();
  shape[axis] = 0;
  for (const Part& part : parts) shape[axis] += part.end - part.begin;
  Tensor rows(x.dtype(), shape);
  Index first = 0;
  for (const Part& part : parts) {
    const Index count = part.end - part.begin;
    copy(slice(x, axis, part.begin, part.end), slice(rows.view(), axis, first, first + count));
    first += count;
  }
  return rows;
}

// A rank's rows of the arrays of a call; arrays of options that all rows share are whole.
struct Local {
  Local(const Inputs& whole, const Options& all, const std::vector<Part>& parts)
      : q(rows_of(whole.q, 2, parts)),
        k(rows_of(whole.k, 2, parts)),
        v(rows_of(whole.v, 2, parts)),
        inputs{q, k, v},
        options(all) {
    const auto localise = [&](ConstView& x, int from_end) {
      if (!x.given() || x.rank() < from_end || x.size(x.rank() - from_end) == 1) return;
      arrays.push_back(rows_of(x, x.rank() - from_end, parts));
      x = arrays.back().view();
    };
    localise(options.bias, 2);
    for (Mask& mask : options.masks) {
      if (auto* keep = std::get_if<Keep>(&mask)) localise(keep->keep, 2);
      auto* lengths = std::get_if<KeyLengths>(&mask);
      if (lengths != nullptr && lengths->lengths.rank() == 2) localise(lengths->lengths, 1);
    }
    if (options.rotary) localise(options.rotary->q_positions, 1);
  }

  Tensor q, k, v;
  std::deque<Tensor> arrays{};
  Inputs inputs;
  Options options;
};

struct Forward {
  Tensor out;
  Tensor lse;
};

Forward run_whole(const Whole& x, const Options& options) {
  Forward all{Tensor(x.dtype, {x.B, x.H, x.Tq, x.E}),
              Tensor(accumulator_of(x.dtype), {x.B, x.H, x.Tq})};
  attention(x.inputs(), options, {.out = all.out, .lse = all.lse});
  return all;
}

Forward run_rank(const Local& local, Ranks& ranks, Sharding sharding) {
  const Index t = local.q.size(2);
  Forward own{Tensor(local.q.dtype(), {local.q.size(0), local.q.size(1), t, local.v.size(3)}),
              Tensor(accumulator_of(local.q.dtype()), {local.q.size(0), local.q.size(1), t})};
  ring_attention(local.inputs, local.options, {.out = own.out, .lse = own.lse}, ranks, sharding);
  return own;
}

// Contiguous parts (one rank; unequal parts; an empty part) and zigzags.
std::vector<Division> divisions() {
  if (!is_thorough()) return {contiguous_parts({1024, 0, 512, 100}), zigzag_parts(2, 512)};
  return {contiguous_parts({700}),
          contiguous_parts({512, 188}),
          contiguous_parts({512, 1024, 200}),
          contiguous_parts({1024, 0, 512, 100}),
          zigzag_parts(2, 512),
          zigzag_parts(2, 512, 2)};
}

TEST(Ring, HasTheBitsOfOneProcess) {
  int compared = 0;
  for (const ScoreKind kind : kScoreKinds) {
    for (const Division& division : divisions()) {
      const bool is_plain_score = kind == ScoreKind::kDot;
      if (!is_plain_score && division.ranks() != 2) continue;
      const Whole x(division.total(), division.total(), DType::kFloat32, kind);
      for (const auto& [name, options_of] : options_by_name()) {
        if (!is_plain_score && name != "plain" && name != "all together") continue;
        SCOPED_TRACE(std::string(name_of(kind)) + ", " + name);
        Options options = options_of(x, x.queries(), x.keys());
        options.score = x.score.score();
        const Forward whole = run_whole(x, options);
        ThreadRanks::run(division.ranks(), {.most_delay_us = 100}, [&](Ranks& ranks) {
          const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
          const Local local(x.inputs(), options, parts);
          const Forward own = run_rank(local, ranks, division.sharding);
          if (own.out.element_count() == 0) return;
          EXPECT_TRUE(same_bits(own.out, rows_of(whole.out.view(), 2, parts))) << ranks.rank();
          EXPECT_TRUE(same_bits(own.lse, rows_of(whole.lse.view(), 2, parts))) << ranks.rank();
        });
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, is_thorough() ? 80 : 35);
}

TEST(Ring, HasTheBitsOfOneProcessForEveryType) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Division& division : {contiguous_parts({512, 512, 70}), zigzag_parts(3, 512)}) {
      for (const Index width : {17, 130}) {
        if (!is_thorough() && division.sharding == kZigzag) continue;
        const Whole x(division.total(), division.total(), dtype, ScoreKind::kDot, width);
        const Options options{.masks = {Causal{}}};
        const Forward whole = run_whole(x, options);
        ThreadRanks::run(division.ranks(), [&](Ranks& ranks) {
          const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
          const Forward own = run_rank(Local(x.inputs(), options, parts), ranks, division.sharding);
          EXPECT_TRUE(same_bits(own.out, rows_of(whole.out.view(), 2, parts)));
          EXPECT_TRUE(same_bits(own.lse, rows_of(whole.lse.view(), 2, parts)));
        });
      }
    }
  }
}

// ---- gradients ------------------------------------------------------------------------------

// A rank's rows of out, lse and dout.
struct SavedRows {
  Tensor out, lse, dout;
};

SavedRows saved_rows(const Whole& x, const Forward& whole, const std::vector<Part>& parts) {
  return {rows_of(whole.out.view(), 2, parts), rows_of(whole.lse.view(), 2, parts),
          rows_of(x.dout.view(), 2, parts)};
}

struct Backward {
  Tensor q, k, v, bias, alibi, sinks, w, wq, wk, score_v;

  Backward(const Inputs& inputs, const Options& options, bool rows_alone) {
    const auto like = [](const ConstView& source) {
      return source.given() ? Tensor(source.dtype(), source.shape()) : Tensor();
    };
    q = like(inputs.q);
    k = like(inputs.k);
    v = like(inputs.v);
    if (rows_alone) return;
    bias = like(options.bias);
    alibi = like(options.alibi);
    sinks = like(options.sinks);
    if (const auto* bilinear = std::get_if<Bilinear>(&options.score)) w = like(bilinear->w);
    if (const auto* additive = std::get_if<Additive>(&options.score)) {
      wq = like(additive->wq);
      wk = like(additive->wk);
      score_v = like(additive->v);
    }
  }
  InputGradients views() {
    InputGradients views{.q = q, .k = k, .v = v, .bias = bias, .alibi = alibi, .sinks = sinks};
    if (w.given()) views.score = BilinearGradient{w};
    if (wq.given()) views.score = AdditiveGradient{wq, wk, score_v, {}};
    return views;
  }
};

// The largest difference of two arrays, divided by the largest |want| or by 1, if that is larger.
// It is infinite if `got` has a NaN or another size.
double relative_error(const ConstView& got, const ConstView& want) {
  const std::vector<double> x = values_of(got);
  const std::vector<double> y = values_of(want);
  if (x.size() != y.size()) return std::numeric_limits<double>::infinity();
  double error = 0;
  double largest = 1;
  for (std::size_t n = 0; n < x.size(); ++n) {
    error = std::max(error, std::isnan(x[n]) ? INFINITY : std::abs(x[n] - y[n]));
    largest = std::max(largest, std::abs(y[n]));
  }
  return error / largest;
}

// How compare_gradients() compares: with which gradients, and which must be bit-identical.
struct Expected {
  bool of_one_rank = false;  // with the ring call on one rank, else with attention_backward()
  bool same_rows = true;     // dq, dk, dv
  bool same_others = true;
};

// Compares the gradients of ranks with those of one process; if `rows_alone`, only dq, dk and dv.
void compare_gradients(const Whole& x, const Options& options, const Division& division,
                       bool rows_alone, const Expected& expected = {}) {
  const Forward whole = run_whole(x, options);
  const Tensor dlse = normal(whole.lse.shape(), 8, accumulator_of(x.dtype));
  Backward want(x.inputs(), options, rows_alone);
  const OutputGradients from{.out = x.dout, .lse = dlse};
  if (expected.of_one_rank) {
    ranks::OneRank one;
    ring_attention_backward(x.inputs(), options, {whole.out, whole.lse}, from, want.views(), one);
  } else {
    attention_backward(x.inputs(), options, {whole.out, whole.lse}, from, want.views());
  }
  ThreadRanks::run(division.ranks(), {.most_delay_us = 50}, [&](Ranks& ranks) {
    const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
    const Local local(x.inputs(), options, parts);
    const auto [out, lse, dout] = saved_rows(x, whole, parts);
    const Tensor dlse_rows = rows_of(dlse.view(), 2, parts);
    Backward got(local.inputs, local.options, rows_alone);
    ring_attention_backward(local.inputs, local.options, {out, lse},
                            {.out = dout, .lse = dlse_rows}, got.views(), ranks, division.sharding);
    const auto check = [&](const char* name, const Tensor& one, const ConstView& other,
                           bool is_of_rows = false) {
      if (!one.given() || one.element_count() == 0) return;
      if (is_of_rows ? expected.same_rows : expected.same_others) {
        EXPECT_TRUE(same_bits(one, other)) << name << " of rank " << ranks.rank();
      } else {
        EXPECT_LE(relative_error(one, other), x.dtype == DType::kFloat64 ? 1e-12 : 1e-5)
            << name << " of rank " << ranks.rank();
      }
    };
    check("dq", got.q, rows_of(want.q.view(), 2, parts), true);
    check("dk", got.k, rows_of(want.k.view(), 2, parts), true);
    check("dv", got.v, rows_of(want.v.view(), 2, parts), true);
    if (got.bias.given()) {
      check("dbias", got.bias, rows_of(want.bias.view(), want.bias.rank() - 2, parts));
    }
    check("dalibi", got.alibi, want.alibi);
    check("dsinks", got.sinks, want.sinks);
    check("dw", got.w, want.w);
    check("dwq", got.wq, want.wq);
    check("dwk", got.wk, want.wk);
    check("dv of the score", got.score_v, want.score_v);
  });
}

// With as many key heads as query heads, and with fewer.
TEST(Ring, GradientsHaveTheBitsOfOneProcess) {
  int calls = 0;
  for (const Division& division : divisions()) {
    for (const Index key_heads : {4, 2}) {
      const Whole x(division.total(), division.total(), DType::kFloat32, ScoreKind::kDot, 17,
                    key_heads);
      for (const auto& [name, options_of] : options_by_name()) {
        if (name == "rotary" || name == "all together") continue;
        const bool by_head = name == "dropout" || name == "bias" || name == "keep" ||
                             name == "function" || name == "expression" || name == "known keys";
        if (!is_thorough() && key_heads != 4 && !by_head) continue;
        if (is_brief() && ++calls % 5 != 0) continue;
        SCOPED_TRACE(name + ", " + std::to_string(division.ranks()) + " ranks, " +
                     std::to_string(key_heads) + " key heads");
        compare_gradients(x, options_of(x, x.queries(), x.keys()), division, true);
      }
    }
  }
}

// With two zigzags, each rank has four parts.
TEST(Ring, HasTheBitsOfOneProcessInManyZigzags) {
  const Division division = zigzag_parts(2, 512, 2);
  const Whole x(division.total(), division.total(), DType::kFloat32, ScoreKind::kDot, 17, 4);
  for (const Options& options :
       {Options{.masks = {Window{520, 20}}}, Options{}, Options{.masks = {Causal{}}}}) {
    if (is_brief() && options.masks.empty()) break;
    const Forward whole = run_whole(x, options);
    ThreadRanks::run(division.ranks(), [&](Ranks& ranks) {
      const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
      const Forward own = run_rank(Local(x.inputs(), options, parts), ranks, division.sharding);
      EXPECT_TRUE(same_bits(own.out, rows_of(whole.out.view(), 2, parts)));
    });
    compare_gradients(x, options, division, true);
  }
}

TEST(Ring, GradientsHaveTheBitsOfOneProcessWhereLseIsLarge) {
  const Division division = zigzag_parts(2, 512);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    if (is_brief() && dtype != DType::kFloat32) break;
    const Whole x(division.total(), division.total(), dtype);
    compare_gradients(x, {.scale = 12, .masks = {Causal{}}}, division, true);
  }
}

TEST(Ring, AllOtherGradientsAddUp) {
  for (const ScoreKind kind : kScoreKinds) {
    for (const Division& division : {contiguous_parts({512, 512, 100}), zigzag_parts(2, 512)}) {
      const Whole x(division.total(), division.total(), DType::kFloat64, kind);
      for (const auto& [name, options_of] : options_by_name()) {
        const bool is_long = name == "function" || name == "expression" || name == "known keys";
        if (!is_thorough() && name != "all together" && name != "bias") continue;
        if (is_long || (kind != ScoreKind::kDot && name != "plain" && name != "all together")) {
          continue;
        }
        SCOPED_TRACE(std::string(name_of(kind)) + ", " + name);
        Options options = options_of(x, x.queries(), x.keys());
        options.score = x.score.score();
        const bool same_rows =
            kind == ScoreKind::kDot && name != "rotary" && name != "all together";
        compare_gradients(x, options, division, false,
                          {.same_rows = same_rows, .same_others = false});
      }
    }
  }
}

// The gradients may differ from those of attention_backward(), but not from those of one rank.
TEST(Ring, OtherGradientsDoNotDependOnTheRanks) {
  const std::vector<Division> all{contiguous_parts({1024, 0, 100}), contiguous_parts({512, 612}),
                                  zigzag_parts(2, 512), contiguous_parts({512, 1536})};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const ScoreKind kind : kScoreKinds) {
      for (const Division& division : all) {
        const bool is_short = &division == &all[dtype == DType::kFloat32 ? 1 : 0];
        if (!is_thorough() && !is_short) continue;
        const Whole x(division.total(), division.total(), dtype, kind);
        for (const auto& [name, options_of] : options_by_name()) {
          const bool is_first = name == (is_brief() ? "bias" : "all together");
          const bool is_other = is_thorough() && kind == ScoreKind::kDot;
          if (!is_first && !is_other) continue;
          SCOPED_TRACE(std::string(name_of(kind)) + ", " + name);
          Options options = options_of(x, x.queries(), x.keys());
          options.score = x.score.score();
          compare_gradients(x, options, division, false, {.of_one_rank = true});
        }
      }
    }
  }
}

// If all queries share one row of bias, a rank without queries may pass a bias without rows.
TEST(Ring, GradientsOfASharedBiasNeedNoRows) {
  for (const Index total : {1, 600}) {
    const Whole x(total, total, DType::kFloat64);
    const Tensor bias = normal({x.H, 1, total}, 9, DType::kFloat64);
    const Forward whole = run_whole(x, {.bias = bias});
    Backward want(x.inputs(), {.bias = bias}, false);
    attention_backward(x.inputs(), {.bias = bias}, {whole.out, whole.lse}, {.out = x.dout},
                       want.views());
    const Division division = contiguous_parts({total, 0});
    ThreadRanks::run(2, [&](Ranks& ranks) {
      const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
      const Local local(x.inputs(), {}, parts);
      const auto [out, lse, dout] = saved_rows(x, whole, parts);
      const Tensor none(DType::kFloat64, {x.H, 0, total});
      const Options options{.bias = ranks.rank() == 0 ? bias.view() : none.view()};
      Backward got(local.inputs, options, false);
      ring_attention_backward(local.inputs, options, {out, lse}, {.out = dout}, got.views(), ranks);
      if (ranks.rank() != 0) return;
      EXPECT_LE(relative_error(got.bias, want.bias), 1e-12);
    });
  }
}

// Every rank gets the whole gradient of a bias that all queries share.
TEST(Ring, GradientsOfASharedBiasAddUp) {
  const Division division = contiguous_parts({512, 512, 1});
  const Whole x(division.total(), division.total(), DType::kFloat64);
  const Tensor bias = normal({x.H, 1, x.Tk}, 9, DType::kFloat64);
  const Forward whole = run_whole(x, {.bias = bias});
  Backward want(x.inputs(), {.bias = bias}, false);
  attention_backward(x.inputs(), {.bias = bias}, {whole.out, whole.lse}, {.out = x.dout},
                     want.views());
  Backward of_one_rank(x.inputs(), {.bias = bias}, false);
  ranks::OneRank one;
  ring_attention_backward(x.inputs(), {.bias = bias}, {whole.out, whole.lse}, {.out = x.dout},
                          of_one_rank.views(), one);
  ThreadRanks::run(3, [&](Ranks& ranks) {
    const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
    const Local local(x.inputs(), {.bias = bias}, parts);
    const auto [out, lse, dout] = saved_rows(x, whole, parts);
    Backward got(local.inputs, local.options, false);
    ring_attention_backward(local.inputs, local.options, {out, lse}, {.out = dout}, got.views(),
                            ranks);
    EXPECT_LE(relative_error(got.bias, want.bias), 1e-12);
    EXPECT_TRUE(same_bits(got.bias, of_one_rank.bias));
  });
}

// An expression reads two arrays: a table, and a slope for each head.
TEST(Ring, GradientsOfCapturedArraysAddUp) {
  for (const Division& division : {contiguous_parts({512, 0, 512, 100}), zigzag_parts(2, 512)}) {
    const Whole x(division.total(), division.total(), DType::kFloat64);
    const Tensor slopes = normal({x.H}, 9, DType::kFloat64);
    const Captured table(x.relative, "table"), slope(slopes, "slope");
    const Symbols at;
    const Options options{.mods = {score_mod(at.s + table(at.h, at.j - at.i + (x.Tq - 1)) -
                                             slope(at.h) * at.s * at.j / at.Tk)},
                          .masks = {Causal{}}};
    const Forward whole = run_whole(x, options);
    struct Sums {
      Tensor table, slope;
    };
    const auto like = [&] {
      return Sums{Tensor(x.relative.dtype(), x.relative.shape()),
                  Tensor(slopes.dtype(), slopes.shape())};
    };
    Sums want = like();
    attention_backward(x.inputs(), options, {whole.out, whole.lse}, {.out = x.dout},
                       {.captured = {{table, want.table}, {slope, want.slope}}});
    Sums of_one_rank = like();
    ranks::OneRank one;
    ring_attention_backward(x.inputs(), options, {whole.out, whole.lse}, {.out = x.dout},
                            {.captured = {{table, of_one_rank.table}, {slope, of_one_rank.slope}}},
                            one);
    ThreadRanks::run(division.ranks(), [&](Ranks& ranks) {
      const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
      const Local local(x.inputs(), options, parts);
      const auto [out, lse, dout] = saved_rows(x, whole, parts);
      Sums got = like();
      ring_attention_backward(local.inputs, local.options, {out, lse}, {.out = dout},
                              {.captured = {{table, got.table}, {slope, got.slope}}}, ranks,
                              division.sharding);
      EXPECT_LE(relative_error(got.table, want.table), 1e-12) << ranks.rank();
      EXPECT_LE(relative_error(got.slope, want.slope), 1e-12) << ranks.rank();
      EXPECT_TRUE(same_bits(got.table, of_one_rank.table)) << ranks.rank();
      EXPECT_TRUE(same_bits(got.slope, of_one_rank.slope)) << ranks.rank();
    });
  }
}

// The terms of a gradient of a captured array are not rounded to the array's type.
TEST(Ring, GradientsOfNarrowCapturedArraysAreRoundedOnce) {
  const Whole x(2048, 2048, DType::kFloat32);
  const Tensor table = convert(normal({64}, 9), DType::kBFloat16);
  const Captured slopes(table, "slopes");
  const Symbols at;
  const Options options{.mods = {score_mod(at.s + slopes(at.j % 64) * at.s)}, .masks = {Causal{}}};
  const Forward whole = run_whole(x, options);
  Tensor want(DType::kFloat64, {64});
  attention_backward(x.inputs(), options, {whole.out, whole.lse}, {.out = x.dout},
                     {.captured = {{slopes, want}}});
  const Division division = zigzag_parts(2, 512);
  ThreadRanks::run(2, [&](Ranks& ranks) {
    const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
    const Local local(x.inputs(), options, parts);
    const auto [out, lse, dout] = saved_rows(x, whole, parts);
    Tensor got(DType::kBFloat16, {64}), wide(DType::kFloat64, {64});
    for (Tensor* to : {&got, &wide}) {
      ring_attention_backward(local.inputs, local.options, {out, lse}, {.out = dout},
                              {.captured = {{slopes, *to}}}, ranks, division.sharding);
    }
    EXPECT_LE(relative_error(wide, want), 1e-5);
    EXPECT_TRUE(same_bits(got, convert(wide, DType::kBFloat16)));
  });
}

// The bits of a NaN gradient do not depend on the ranks.
TEST(Ring, GradientsThatAreNanHaveOneNan) {
  const Division division = zigzag_parts(2, 512);
  Whole x(2048, 2048, DType::kFloat32);
  x.dout.view().at<float>({0, 0, 1100, 0}) = std::bit_cast<float>(0x7FC00001);
  x.dout.view().at<float>({0, 0, 1700, 0}) = std::bit_cast<float>(0xFFC00002);
  const Options options{.masks = {Causal{}}, .sinks = x.sinks};
  const Forward whole = run_whole(x, options);
  ThreadRanks::run(2, [&](Ranks& ranks) {
    const auto& parts = division.parts[static_cast<std::size_t>(ranks.rank())];
    const Local local(x.inputs(), options, parts);
    const auto [out, lse, dout] = saved_rows(x, whole, parts);
    Tensor dsinks(DType::kFloat32, {x.H});
    ring_attention_backward(local.inputs, options, {out, lse}, {.out = dout}, {.sinks = dsinks},
                            ranks, division.sharding);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(dsinks.values<float>()[0]), 0x7FC00000);
    EXPECT_TRUE(std::isfinite(dsinks.values<float>()[1]));
  });
}

// ---- errors ---------------------------------------------------------------------------------

// Calls ring_attention() with lengths[r] rows on rank r, after `change` has changed the arguments.
// Returns each rank's error, or "".
std::vector<std::string> errors_of(
    const std::vector<Index>& lengths, Sharding sharding,
    const std::function<void(int, Inputs&, Options&, Outputs&)>& change) {
  std::vector<std::string> errors(lengths.size());
  ThreadRanks::run(static_cast<int>(lengths.size()), [&](Ranks& ranks) {
    const auto r = static_cast<std::size_t>(ranks.rank());
    const Tensor q = normal({1, 2, lengths[r], 8}, 1);
    Tensor out(DType::kFloat32, q.shape());
    Inputs inputs{q, q, q};
    Options options;
    Outputs outputs{.out = out};
    change(ranks.rank(), inputs, options, outputs);
    try {
      ring_attention(inputs, options, outputs, ranks, sharding);
    } catch (const OtherRankFailed& error) {
      errors[r] = std::string("other: ") + error.what();
    } catch (const Error& error) {
      errors[r] = error.what();
    }
  });
  return errors;
}

TEST(Ring, ErrorsAreThoseOfTheRankThatHasThem) {
  using Errors = std::vector<std::string>;
  const std::vector<Index> lengths{512, 512};
  const auto only = [&](int rank, const auto& change) {
    return errors_of(lengths, kContiguous,
                     [&](int mine, Inputs& inputs, Options& options, Outputs& outputs) {
                       if (mine == rank) change(inputs, options, outputs);
                     });
  };
  const Tensor small = normal({1, 2, 5}, 1);
  const Tensor wide = normal({1, 2, 512, 9}, 1);
  EXPECT_EQ(only(1, [&](Inputs& in, Options&, Outputs&) { in.q = small; }),
            (Errors{"other: rank 1 has failed",
                    "ring_attention: q must be [B,heads,T,channels], got [1,2,5]"}));
  EXPECT_EQ(only(0, [&](Inputs& in, Options&, Outputs&) { in.k = wide; })[1],
            "ring_attention: the width of k must be equal on all ranks, but differs on ranks 0 and "
            "1");
  EXPECT_EQ(
      errors_of(lengths, kContiguous, [&](int, Inputs& in, Options&, Outputs&) { in.k = wide; })[0]
          .substr(0, 40),
      "ring_attention: k has D = 9 but q has D ");
  EXPECT_EQ(only(1, [&](Inputs& in, Options&, Outputs& o) { in.q = o.out; })[1],
            "ring_attention: out must not share memory with q");
  Tensor bad(DType::kInt64, {1, 512});
  bad.values<Index>()[300] = -1;
  EXPECT_EQ(only(1, [&](Inputs&, Options& o, Outputs&) { o.masks = {KeyLengths{bad}}; })[1],
            "ring_attention: the number of masks must be equal on all ranks, but differs on ranks "
            "0 and 1");
  const std::string wrong_length =
      errors_of(lengths, kContiguous, [&](int rank, Inputs&, Options& o, Outputs&) {
        static const Tensor kGood(DType::kInt64, {1, 512});
        o.masks = {KeyLengths{rank == 1 ? bad : kGood}};
      })[1];
  EXPECT_NE(wrong_length.find("must be in"), std::string::npos) << wrong_length;
  EXPECT_EQ(only(1, [&](Inputs&, Options& o, Outputs&) { o.softcap = 3; })[1],
            "ring_attention: softcap must be equal on all ranks, but differs on ranks 0 and 1");
  EXPECT_EQ(only(1,
                 [&](Inputs&, Options& o, Outputs&) {
                   o.dropout = {0.5, 1};
                 })[1],
            "ring_attention: dropout.p must be equal on all ranks, but differs on ranks 0 and 1");
  EXPECT_EQ(only(1, [&](Inputs&, Options& o, Outputs&) { o.masks = {Causal{}}; })[1],
            "ring_attention: the number of masks must be equal on all ranks, but differs on ranks "
            "0 and 1");
  const Tensor bias = normal({512, 512}, 1);
  const auto all = [&](Options options) {
    return errors_of(lengths, kContiguous,
                     [&](int, Inputs&, Options& o, Outputs&) { o = options; })[0];
  };
  EXPECT_EQ(all({.bias = bias}),
            "ring_attention: bias must have all keys of the sequence on the last axis, which are "
            "1024, got [512,512]");
  EXPECT_EQ(all({.masks = {Padding{Tensor(DType::kBool, {})}}}),
            "ring_attention: padding must have all keys of the sequence on the last axis, which "
            "are 1024, got []");
  EXPECT_EQ(all({.softcap = -1}),
            "ring_attention: softcap must be finite and 0 (off) or more, got -1");
  EXPECT_EQ(errors_of({512, 512}, kContiguous,
                      [](int, Inputs&, Options&, Outputs& o) { o.entropy = o.out; })[0],
            "ring_attention: entropy must be absent: out and lse are the results of several ranks");
  const auto nothing = [](int, Inputs&, Options&, Outputs&) {};
  EXPECT_EQ(errors_of({100, 512}, kContiguous, nothing)[1],
            "ring_attention: q must have parts that begin at multiples of 512 rows of the "
            "sequence, but rank 1 has rows from 100 on");
  EXPECT_EQ(errors_of({1024, 512}, kZigzag, nothing)[1],
            "ring_attention: q must have the same number of rows on every rank, a multiple of 2, "
            "with zigzags = 1, got [1024,512]");
  EXPECT_EQ(errors_of({512, 512}, kContiguous, nothing), (Errors{"", ""}));
}

TEST(Ring, ErrorsOfCapturedGradientsAreThoseOfTheRankThatHasThem) {
  const Tensor x = normal({1, 2, 512, 8}, 1);
  const Tensor lse(DType::kFloat32, {1, 2, 512});
  const Tensor table = normal({2, 3}, 2);
  const Captured is_read(table, "table"), other(table, "other");
  const Symbols at;
  const Options options{.mods = {score_mod(at.s + is_read(at.h, 0))}};
  const auto errors_of_request = [&](const Dims& shape, const Captured& of) {
    std::vector<std::string> errors(2);
    ThreadRanks::run(2, [&](Ranks& ranks) {
      const bool is_wrong = ranks.rank() == 1;
      Tensor gradient(DType::kFloat32, is_wrong ? shape : table.shape());
      try {
        ring_attention_backward({x, x, x}, options, {x, lse}, {.out = x},
                                {.captured = {{is_wrong ? of : is_read, gradient}}}, ranks);
      } catch (const OtherRankFailed& error) {
        errors[static_cast<std::size_t>(ranks.rank())] = error.what();
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(ranks.rank())] = error.what();
      }
    });
    return errors;
  };
  using Errors = std::vector<std::string>;
  EXPECT_EQ(errors_of_request({2, 3}, is_read), (Errors{"", ""}));
  EXPECT_EQ(
      errors_of_request({2, 3}, other),
      (Errors{"rank 1 has failed",
              "ring_attention_backward: input_gradients.captured of other is of an array that "
              "no score in mods reads"}));
  // One rank requests more than the other.
  std::vector<std::string> errors(2);
  const Tensor single = normal({1}, 3);
  const Captured scale(single, "scale");
  const Options reads_one{.mods = {score_mod(at.s * scale(0))}};
  ThreadRanks::run(2, [&](Ranks& ranks) {
    Tensor gradient(DType::kFloat32, {1}), dq(DType::kFloat32, x.shape());
    InputGradients wanted{.q = dq};
    if (ranks.rank() == 0) wanted.captured = {{scale, gradient}};
    try {
      ring_attention_backward({x, x, x}, reads_one, {x, lse}, {.out = x, .lse = lse}, wanted,
                              ranks);
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(ranks.rank())] = error.what();
    }
  });
  EXPECT_EQ(errors, (Errors{"rank 1 has failed",
                            "ring_attention_backward: the arguments must be equal on all ranks, "
                            "but differs on ranks 0 and 1"}));
  EXPECT_EQ(errors_of_request({3, 2}, is_read)[1],
            "ring_attention_backward: the arguments must be equal on all ranks, but differs on "
            "ranks 0 and 1");
}

// Returns the text of the error that f throws, or "".
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Rank 1 fails while other ranks wait for its messages: each rank throws, and the ranks can be used
// again.
TEST(Ring, ErrorsAmongMessagesEndTheCallOnAllRanks) {
  const Division division = contiguous_parts({1024, 512, 1024, 700});
  const Whole x(division.total(), division.total(), DType::kFloat32);
  const Options good{.sinks = x.sinks};
  const Forward whole = run_whole(x, good);
  const Tensor numbers = normal({2}, 9);
  const Captured table(numbers, "table");
  const Symbols at;
  // Reads the table out of bounds only for query 1030, which rank 1 has, and `key`.
  const auto wrong_at = [&](Index key) {
    return Options{.mods = {score_mod(at.s + table(where(at.i == 1030 && at.j == key, 5, 0)))},
                   .sinks = x.sinks};
  };
  enum class Pass { kForward, kRows, kBlocks, kOthers, kOwn };
  for (const Pass pass : {Pass::kForward, Pass::kRows, Pass::kBlocks, Pass::kOthers, Pass::kOwn}) {
    SCOPED_TRACE(static_cast<int>(pass));
    Options bad = wrong_at(pass == Pass::kOwn ? 1200 : 300);
    if (pass == Pass::kBlocks) bad.score = Cosine{};
    std::vector<std::string> errors(4);
    ThreadRanks::run(4, {.most_delay_us = 100}, [&](Ranks& ranks) {
      const auto rank = static_cast<std::size_t>(ranks.rank());
      const auto& parts = division.parts[rank];
      const Local local(x.inputs(), bad, parts);
      const auto [out, lse, dout] = saved_rows(x, whole, parts);
      Tensor got(DType::kFloat32, out.shape());
      Tensor dq(DType::kFloat32, local.q.shape());
      Tensor dtable(DType::kFloat32, numbers.shape());
      Tensor dsinks(DType::kFloat32, {x.H});
      InputGradients wanted;
      if (pass == Pass::kRows || pass == Pass::kBlocks) wanted.q = dq;
      if (pass == Pass::kOthers) wanted.captured = {{table, dtable}};
      if (pass == Pass::kOwn) wanted.sinks = dsinks;
      errors[rank] = error_of([&] {
        if (pass == Pass::kForward) {
          return ring_attention(local.inputs, bad, {.out = got}, ranks, division.sharding);
        }
        ring_attention_backward(local.inputs, bad, {out, lse}, {.out = dout}, wanted, ranks,
                                division.sharding);
      });
      const Forward own = run_rank(Local(x.inputs(), good, parts), ranks, division.sharding);
      EXPECT_TRUE(same_bits(own.out, out)) << ranks.rank();
    });
    const char* const function =
        pass == Pass::kForward ? "ring_attention" : "ring_attention_backward";
    EXPECT_EQ(errors[1], std::string(function) +
                             ": mods[0] reads table at index 5 of axis 0, which has 2 elements, at "
                             "b = 0, h = 0, i = 1030, j = " +
                             (pass == Pass::kOwn ? "1200" : "300"));
    for (const std::size_t other : {0, 2, 3}) EXPECT_EQ(errors[other], "rank 1 has failed");
  }
}

// A rank whose call is cancelled when it begins to receive rows.
class CancelledRank final : public Ranks {
 public:
  CancelledRank(Ranks& ranks, std::atomic<bool>& stop) : ranks_(ranks), stop_(stop) {}
  int rank() const noexcept override { return ranks_.rank(); }
  int count() const noexcept override { return ranks_.count(); }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int to, int channel) override {
    return ranks_.send(data, to, channel);
  }
  std::unique_ptr<Transfer> receive(std::span<std::byte> data, int from, int channel) override {
    if (channel != static_cast<int>(ranks::Channel::kAgreement)) stop_ = true;
    return ranks_.receive(data, from, channel);
  }

 private:
  Ranks& ranks_;
  std::atomic<bool>& stop_;
};

TEST(Ring, ACancelledRankEndsTheCallOnAllRanks) {
  const Division division = contiguous_parts({1024, 512, 700});
  const Whole x(division.total(), division.total(), DType::kFloat32);
  const Forward whole = run_whole(x, {});
  std::vector<std::string> errors(6);
  ThreadRanks::run(3, [&](Ranks& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    const auto& parts = division.parts[rank];
    const Local local(x.inputs(), {}, parts);
    const auto [out, lse, dout] = saved_rows(x, whole, parts);
    Tensor got(DType::kFloat32, out.shape());
    Tensor dk(DType::kFloat32, local.k.shape());
    std::atomic<bool> stop = false;
    CancelledRank cancelled(ranks, stop);
    Ranks& mine = rank == 2 ? cancelled : ranks;
    Context context;
    context.set_stop_flag(&stop);
    errors[rank] = error_of(
        [&] { ring_attention(local.inputs, {}, {.out = got}, mine, division.sharding, context); });
    stop = false;
    errors[rank + 3] = error_of([&] {
      ring_attention_backward(local.inputs, {}, {out, lse}, {.out = dout}, {.k = dk}, mine,
                              division.sharding, context);
    });
    const Forward own = run_rank(local, ranks, division.sharding);
    EXPECT_TRUE(same_bits(own.out, out)) << ranks.rank();
  });
  const std::string other = "rank 2 has failed";
  const std::string forward = Cancelled("ring_attention").what();
  const std::string backward = Cancelled("ring_attention_backward").what();
  EXPECT_EQ(errors, (std::vector{other, other, forward, other, other, backward}));
}

}  // namespace
}  // namespace qkv::test
