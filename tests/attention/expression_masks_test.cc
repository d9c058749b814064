// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/expression.h>
#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "expressions/program.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/paths.h"

// Masks that are expressions: the library finds each query's keys before it evaluates pairs.
// Results are bit-identical with those of mask functions, which are evaluated for every pair, and
// of built-in masks.
namespace qkv::test {
namespace {

constexpr Index kB = 2;
constexpr Index kH = 4;
constexpr Index kG = 2;
constexpr Index kTq = 150;
constexpr Index kTk = 203;
constexpr Index kD = 8;

std::vector<int> documents() {
  std::vector<int> ids(static_cast<std::size_t>(kTk));
  for (std::size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int>(n / 60);
  return ids;
}
const std::vector<int> kDocuments = documents();

// An expression, and masks that mask the same pairs.
struct EqualMasks {
  MaskMod expression;
  std::vector<Mask> others;
};

std::vector<EqualMasks> masks() {
  const Symbols x;
  const Captured document(kDocuments, "document");
  const int* const id = kDocuments.data();
  std::vector<EqualMasks> all;
  const auto add = [&](const Expression& expression, auto function,
                       const std::vector<Mask>& built_in = {}) {
    all.push_back({mask_mod(expression), built_in});
    all.back().others.emplace_back(mask_mod(function));
  };
  add(x.j <= x.i + (x.Tk - x.Tq), [](At at) { return at.j <= at.i + (kTk - kTq); }, {Causal{}});
  // 53 is kTk - kTq.
  add(x.j - x.i - 53 <= 0 && x.i + 53 - x.j <= 70,
      [](At at) { return at.j <= at.i + 53 && at.j >= at.i + 53 - 70; }, {Window{70, 0}});
  add(document(x.i) == document(x.j), [id](At at) { return id[at.i] == id[at.j]; });
  add(document(x.i) == document(x.j) && x.j <= x.i,
      [id](At at) { return id[at.i] == id[at.j] && at.j <= at.i; });
  add(x.j <= x.i * (x.h + x.b), [](At at) { return at.j <= at.i * (at.h + at.b); });
  // Masks with gaps are evaluated pair by pair in parts of the tiles.
  add(x.j < 20 || abs(x.i - x.j) < 9, [](At at) { return at.j < 20 || std::abs(at.i - at.j) < 9; });
  add((x.i - x.j) % 3 == 0 && x.j <= x.i,
      [](At at) { return (at.i - at.j) % 3 == 0 && at.j <= at.i; });
  add(x.j / 64 == 1 || x.j / 64 == 3, [](At at) { return at.j / 64 == 1 || at.j / 64 == 3; });
  return all;
}

struct Results {
  std::vector<Tensor> arrays;

  bool operator==(const Results& other) const {
    if (arrays.size() != other.arrays.size()) return false;
    for (std::size_t n = 0; n < arrays.size(); ++n) {
      const auto same = same_bits(arrays[n], other.arrays[n]);
      EXPECT_TRUE(same) << "result " << n;
      if (!same) return false;
    }
    return true;
  }
};

// Returns out, lse, column sums, entropy, dq, dk and dv.
Results results(const Mask& mask, DType dtype, Context& context, bool more_options) {
  const DType sums = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
  Tensor q = normal({kB, kH, kTq, kD}, 1, dtype);
  Tensor k = normal({kB, kG, kTk, kD}, 2, dtype);
  const Tensor v = normal({kB, kG, kTk, kD}, 3, dtype);
  const Tensor dout = normal({kB, kH, kTq, kD}, 4, dtype);
  const Tensor bias = normal({kTq, kTk}, 5, dtype);
  Options options{.masks = {mask}};
  if (more_options) {
    options.bias = bias;
    options.masks.emplace_back(Window{.left = 90});
    options.dropout = {.p = 0.25, .seed = 3};
    // A NaN in a key must not reach queries for which the key is masked.
    core::store(dtype, k.view().data(), 7 * kD, std::numeric_limits<double>::quiet_NaN());
  }
  Results to;
  to.arrays.emplace_back(dtype, dout.shape());
  to.arrays.emplace_back(sums, Dims{kB, kH, kTq});
  to.arrays.emplace_back(sums, Dims{kB, kH, kTk});
  to.arrays.emplace_back(sums, Dims{kB, kH, kTq});
  for (const Tensor* x : {static_cast<const Tensor*>(&q), static_cast<const Tensor*>(&k), &v}) {
    to.arrays.emplace_back(dtype, x->shape());
  }
  std::vector<Tensor>& a = to.arrays;
  attention({q, k, v}, options, {.out = a[0], .lse = a[1], .entropy = a[3], .column_sums = a[2]},
            context);
  attention_backward({q, k, v}, options, {a[0], a[1]}, {.out = dout},
                     {.q = a[4], .k = a[5], .v = a[6]}, context);
  return to;
}

TEST(ExpressionMasks, HaveTheBitsOfFunctionsOnEveryPath) {
  const std::vector<EqualMasks> all = masks();
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    if (is_brief() && dtype != DType::kFloat32) continue;
    for (const std::string& path : all_paths(ScoreKind::kDot, dtype)) {
      if (path == kReferencePath && dtype != DType::kFloat32 && !is_thorough()) continue;
      Context context = context_on(path);
      int number = 0;
      for (const EqualMasks& equal : all) {
        for (const bool more : {false, true}) {
          // For other dtypes one mask with a range and one with gaps are enough, both with and
          // without more options.
          if (!is_thorough() && number % 5 != (more ? 1 : 0) && dtype != DType::kFloat32) continue;
          if (is_brief() && number % 5 != 0) continue;
          const Results got = results(equal.expression, dtype, context, more);
          for (const Mask& other : equal.others) {
            EXPECT_TRUE(got == results(other, dtype, context, more))
                << path << ", mask " << number << (more ? " with options" : "");
          }
        }
        ++number;
      }
    }
  }
}

// Each packed sequence has its own Tq and Tk, and i and j count from its start.
TEST(ExpressionMasks, OfPackedSequencesHaveTheBitsOfFunctions) {
  const std::vector<Index> cu_q{0, 70, 70, 72, 200};
  const std::vector<Index> cu_k{0, 90, 93, 93, 300};
  const std::vector<int> queries{70, 0, 2, 128}, keys{90, 3, 0, 207};
  const Tensor q = normal({200, kH, kD}, 1), k = normal({300, kG, kD}, 2);
  const Tensor v = normal({300, kG, kD}, 3), dout = normal({200, kH, kD}, 4);
  const auto run = [&](const Mask& mask) {
    Results to;
    to.arrays.emplace_back(DType::kFloat32, q.shape());
    to.arrays.emplace_back(DType::kFloat32, Dims{kH, 200});
    for (const Tensor* x : {&q, &k, &v}) to.arrays.emplace_back(DType::kFloat32, x->shape());
    std::vector<Tensor>& a = to.arrays;
    const Inputs inputs{.q = q, .k = k, .v = v, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k};
    const Options options{.masks = {mask}};
    attention(inputs, options, {.out = a[0], .lse = a[1]});
    attention_backward(inputs, options, {a[0], a[1]}, {.out = dout},
                       {.q = a[2], .k = a[3], .v = a[4]});
    return to;
  };
  const Symbols x;
  const int* const Tq = queries.data();
  const int* const Tk = keys.data();
  EXPECT_TRUE(run(mask_mod(x.j <= x.i + (x.Tk - x.Tq))) ==
              run(mask_mod([=](At at) { return at.j <= at.i + (Tk[at.b] - Tq[at.b]); })));
  EXPECT_TRUE(run(mask_mod(x.j <= x.i + (x.Tk - x.Tq))) == run(Causal{}));
  EXPECT_TRUE(run(mask_mod(x.j < x.Tk - 1 - x.b || x.h == 1)) ==
              run(mask_mod([=](At at) { return at.j < Tk[at.b] - 1 - at.b || at.h == 1; })));
  EXPECT_TRUE(run(mask_mod(x.j % 2 == 0 && x.j > x.i)) ==
              run(mask_mod([](At at) { return at.j % 2 == 0 && at.j > at.i; })));
}

// A cache's entries have lengths of their own; a step has one query.
TEST(ExpressionMasks, OfACacheHaveTheBitsOfFunctions) {
  KvCache cache(KvCacheSizes{.B = kB, .G = kG, .D = kD, .E = kD});
  cache.append(normal({kB, kG, 40, kD}, 1), normal({kB, kG, 40, kD}, 2));
  const std::vector<Index> shorter{40, 17};
  cache.truncate(1, shorter[1]);
  const Tensor q = normal({kB, kH, 1, kD}, 3);
  const auto run = [&](const Mask& mask) {
    Results to;
    to.arrays.emplace_back(DType::kFloat32, q.shape());
    cache.attention(q, {.masks = {mask}}, {.out = to.arrays[0]});
    return to;
  };
  const Symbols x;
  const Index* const length = shorter.data();
  EXPECT_TRUE(run(mask_mod(x.j >= x.Tk - 8 || x.j < 2)) ==
              run(mask_mod([=](At at) { return at.j >= length[at.b] - 8 || at.j < 2; })));
  EXPECT_TRUE(run(mask_mod(x.j >= x.Tk - 8)) ==
              run(mask_mod([=](At at) { return at.j >= length[at.b] - 8; })));
}

// A plan finds each query's keys again in each run, since an array that a mask reads may have
// changed.
TEST(ExpressionMasks, OfAPlanSeeChangedArrays) {
  std::vector<int> ids(static_cast<std::size_t>(kTk));
  const Symbols x;
  const Captured document(ids, "document");
  const Options options{.masks = {mask_mod(document(x.i) == document(x.j))}};
  const Tensor q = normal({1, 1, kTq, kD}, 1), k = normal({1, 1, kTk, kD}, 2);
  Tensor got(DType::kFloat32, q.shape()), want(DType::kFloat32, q.shape());
  Context context(Executor::threads(1));
  Plan plan({q, k, k}, options, context);
  for (const int length : {60, 25, 100}) {
    for (std::size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int>(n) / length;
    plan.run({q, k, k}, {.out = got});
    const int* const id = ids.data();
    attention({q, k, k}, {.masks = {mask_mod([id](At at) { return id[at.i] == id[at.j]; })}},
              {.out = want});
    EXPECT_TRUE(same_bits(got, want)) << length;
  }
}

// A score of -inf for each pair that a mask forbids gives results bit-identical with the mask's.
TEST(ExpressionMasks, OfScoresHaveTheBitsOfMasksOnEveryPath) {
  const Symbols x;
  const Expression masked = -std::numeric_limits<double>::infinity();
  const Tensor q = normal({kB, kH, kTq, kD}, 1), k = normal({kB, kG, kTk, kD}, 2);
  for (const Expression& mask : {x.j <= x.i, x.j < 20 || abs(x.i - x.j) < 9, x.j / 64 == x.h}) {
    for (const std::string& path : all_backward_paths()) {
      if (is_brief() && path == kReferencePath) continue;
      Context context = context_on(path);
      const auto run = [&](const Options& options) {
        Results to;
        to.arrays.emplace_back(DType::kFloat32, q.shape());
        to.arrays.emplace_back(DType::kFloat32, Dims{kB, kH, kTq});
        to.arrays.emplace_back(DType::kFloat32, q.shape());
        to.arrays.emplace_back(DType::kFloat32, k.shape());
        std::vector<Tensor>& a = to.arrays;
        attention({q, k, k}, options, {.out = a[0], .lse = a[1]}, context);
        attention_backward({q, k, k}, options, {a[0], a[1]}, {.out = q}, {.q = a[2], .k = a[3]},
                           context);
        return to;
      };
      const Results want = run({.mods = {score_mod(x.s * 0.5)}, .masks = {mask_mod(mask)}});
      EXPECT_TRUE(run({.mods = {score_mod(where(mask, x.s * 0.5, masked))}}) == want) << path;
      EXPECT_TRUE(run({.mods = {score_mod(where(!mask, masked, x.s * 0.5))}}) == want) << path;
      const Tensor none(DType::kFloat32, {kTq, kTk});
      EXPECT_TRUE(run({.mods = {score_mod(where(mask, x.s * 0.5, masked))}, .bias = none}) ==
                  run({.mods = {score_mod(x.s * 0.5)}, .bias = none, .masks = {mask_mod(mask)}}))
          << path;
    }
  }
  // A NaN in the bias makes a score of -inf NaN, and so its row.
  Tensor bias(DType::kFloat32, {kTq, kTk});
  bias.values<float>()[kTk - 1] = std::numeric_limits<float>::quiet_NaN();
  Tensor lse(DType::kFloat32, {kB, kH, kTq}), out(DType::kFloat32, q.shape());
  attention({q, k, k}, {.mods = {score_mod(where(x.j <= x.i, x.s, masked))}, .bias = bias},
            {.out = out, .lse = lse});
  EXPECT_TRUE(std::isnan(lse.values<float>()[0]));
  EXPECT_FALSE(std::isnan(lse.values<float>()[1]));
  // Only a condition that does not read the score, with -inf where it fails, becomes a mask.
  const std::shared_ptr<const detail::ExpressionProgram> program =
      score_mod(where(x.s < 1, x.s, masked)).program;
  EXPECT_FALSE(program->mask.has_value());
  EXPECT_TRUE(score_mod(where(x.j < 1, x.s, masked)).program->mask.has_value());
  EXPECT_FALSE(score_mod(where(x.j < 1, x.s, -1000.0)).program->mask.has_value());
}

// Score expressions may read Tq and Tk, in both passes.
TEST(ExpressionMasks, ScoresThatReadLengthsHaveTheBitsOfFunctionsOnEveryPath) {
  const Symbols x;
  const ScoreMod expression = score_mod(x.s * (x.i + x.Tk - x.Tq - x.j) + x.Tk);
  const ScoreMod function =
      score_mod([](auto s, At at) { return s * static_cast<float>(at.i + 7 - at.j) + 20.0F; });
  const Tensor q = normal({1, 1, 13, kD}, 1), k = normal({1, 1, 20, kD}, 2);
  for (const std::string& path : all_backward_paths()) {
    Context context = context_on(path);
    std::vector<Results> got;
    for (const ScoreMod& mod : {expression, function}) {
      Results& to = got.emplace_back();
      to.arrays.emplace_back(DType::kFloat32, q.shape());
      to.arrays.emplace_back(DType::kFloat32, Dims{1, 1, 13});
      to.arrays.emplace_back(DType::kFloat32, k.shape());
      std::vector<Tensor>& a = to.arrays;
      attention({q, k, k}, {.mods = {mod}}, {.out = a[0], .lse = a[1]}, context);
      attention_backward({q, k, k}, {.mods = {mod}}, {a[0], a[1]}, {.out = q}, {.k = a[2]},
                         context);
    }
    EXPECT_TRUE(got[0] == got[1]) << path;
  }
}

}  // namespace
}  // namespace qkv::test
