// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/expression.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/paths.h"
#include "tests/attention/scores.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

// Tests expressions as users meet them: texts, errors, and calls, whose results are bit-identical
// with those of C++ functions.
namespace qkv::test {
namespace {

TEST(ExpressionText, IsThatOfPython) {
  const Symbols x;
  const std::vector<float> numbers(4);
  const std::vector<std::int32_t> integers(4);
  const Captured slope(ConstView(numbers), "slope");
  const Captured document(ConstView(integers), "document");
  const std::pair<Expression, std::string> cases[] = {
      {x.s - slope(x.h) * abs(x.i - x.j), "s - slope[h] * float(abs(i - j))"},
      {x.i / 16 == x.j / 16, "i // 16 == j // 16"},
      {document(x.i) == document(x.j) && !(x.j > x.i), "document[i] == document[j] and not i < j"},
      {x.s / 2, "s / 2.0"},
      {x.s - (x.s - 1.5), "s - (s - 1.5)"},
      {(x.s - x.s) - 1.5, "s - s - 1.5"},
      {-(x.s + 1) * 2, "-(s + 1.0) * 2.0"},
      {x.s * -2, "s * (-2.0)"},
      {where(x.i < x.j || x.j % 3 != 0, x.s, -1e30), "where(i < j or j % 3 != 0, s, -1e+30)"},
      {max(min(x.i, 3), x.b) + true, "max(min(i, 3), b) + 1"},
      {sqrt(tanh(exp(log(x.s)))) + sin(x.s) * cos(floor(x.s)),
       "sqrt(tanh(exp(log(s)))) + sin(s) * cos(floor(s))"},
      {to_integer(x.s) + x.i, "int(s) + i"}};
  for (const auto& [expression, text] : cases) EXPECT_EQ(expression.text(), text);
}

TEST(ExpressionErrors, NameTheArgumentAndTheRule) {
  const Symbols x;
  const std::vector<float> numbers(4);
  const Captured table(ConstView(numbers), "table");
  const std::pair<std::function<void()>, std::string> cases[] = {
      {[&] { table(x.i, x.j); }, "expression: table has 1 axes, got 2 indices"},
      {[&] { table(x.s); }, "expression: table takes integers as indices, got a number: s"},
      {[&] { table(x.i < x.j); },
       "expression: table takes integers as indices, got a truth value: i < j"},
      {[&] { x.s&& x.i; }, "expression: and takes truth values, got a number: s"},
      {[&] { !x.i; }, "expression: not takes truth values, got an integer: i"},
      {[&] { where(x.i, x.s, x.s); }, "expression: where takes truth values, got an integer: i"},
      {[&] { score_mod(x.i < x.j); },
       "score_mod: score must be a number, got a truth value: i < j"},
      {[&] { mask_mod(x.i - x.j); },
       "mask_mod: mask must be a truth value, such as j <= i, got i - j"},
      {[&] { mask_mod(x.s < 0); }, "mask_mod: mask must not depend on the score, got s < 0.0"},
      {[&] { Captured(ConstView(), "table"); }, "expression: table is absent"},
      {[&] { Expression(std::int64_t{1} << 40); },
       "expression: an integer must fit in 32 bits, got 1099511627776"},
      {[&] {
         Expression deep = x.s;
         for (int n = 1; n < 4000; ++n) deep = deep + 1;
         EXPECT_TRUE(deep.text().starts_with("... + ... + 1.0 + 1.0"));
         EXPECT_TRUE(deep.text().ends_with(" + 1.0"));
         deep = deep + 1;
       },
       "expression: operations must not be nested more than 4000 deep"}};
  for (const auto& [call, message] : cases) {
    EXPECT_EQ(error_of(call), message);
  }
}

// ---- calls ----------------------------------------------------------------------------------

struct Call {
  Tensor q = normal({2, 3, 40, 8}, 1), k = normal({2, 3, 90, 8}, 2), v = normal({2, 3, 90, 5}, 3);
  Tensor out{DType::kFloat32, {2, 3, 40, 5}};

  void run(const Options& options) {
    Context context(Executor::threads(1));
    attention({q, k, v}, options, {.out = out}, context);
  }
};

TEST(ExpressionIndices, OutsideOfTheArrayAreErrorsBeforeTheCall) {
  const Symbols x;
  Call call;
  const std::vector<float> table(64), zeros_and_ones{0, 1};
  const std::vector<std::int32_t> lengths{3, 0, 1};
  std::vector<std::int64_t> large(90);
  large[7] = std::int64_t{1} << 33;
  const Captured of_distance(ConstView(table), "of_distance");
  const Captured count(ConstView(lengths), "count");
  const std::pair<Options, std::string> cases[] = {
      {{.mods = {score_mod(x.s + of_distance(x.i - x.j + 63))}},
       "attention: mods[0] reads of_distance at index -1 of axis 0, which has 64 elements, at b = "
       "0, h = 0, i = 0, j = 64"},
      {{.mods = {score_mod(x.s), score_mod(x.s + of_distance(x.i + 30))}},
       "attention: mods[1] reads of_distance at index 64 of axis 0, which has 64 elements, at b = "
       "0, h = 0, i = 34, j = 0"},
      {{.masks = {mask_mod(x.j / count(x.h) < 5)}},
       "attention: mask_mod divides an integer by 0 at b = 0, h = 1, i = 0, j = 0"},
      {{.mods = {score_mod(x.s + of_distance(to_integer(x.s)))}},
       "attention: mods[0] reads of_distance at an index that depends on the score and may be "
       "outside of axis 0, which has 64 elements; limit it with min and max"},
      {{.mods = {score_mod(x.s + x.i / where(x.s > 0, 0, 1))}},
       "attention: mods[0] divides an integer by another that depends on the score and may be 0; "
       "exclude 0 with max or where"},
      // 9 * 0.33333333 is 3 in float32, the type of the call, and less in float64.
      {{.mods = {score_mod(x.s + count(to_integer(to_number(min(x.i, 9)) * 0.33333333)))}},
       "attention: mods[0] reads count at index 3 of axis 0, which has 3 elements, at b = 0, h = "
       "0, i = 9, j = 0"},
      {{.masks = {mask_mod(Captured(ConstView(large), "large")(x.j) == 0)}},
       "attention: mask_mod reads large, whose integers must fit in 32 bits, got "
       "8589934592"}};
  for (const auto& [options, message] : cases) {
    for (float& value : call.out.values<float>()) value = 7;
    EXPECT_EQ(error_of([&] { call.run(options); }), message);
    for (const float value : call.out.values<float>()) ASSERT_EQ(value, 7);
  }
  // Indices that are valid for all pairs are accepted, whether interval arithmetic or evaluating
  // all pairs shows this.
  call.run({.mods = {score_mod(x.s + of_distance(min(abs(x.i - x.j), 63)))}});
  call.run({.mods = {score_mod(x.s + of_distance(where(x.i < x.j, 0, (x.i - x.j) % 64)))}});
  call.run({.mods = {score_mod(x.s + of_distance(x.i * x.i / 25))}});
  call.run({.mods = {score_mod(x.s + of_distance(min(max(to_integer(x.s), 0), 63)))}});
  call.run({.mods = {score_mod(x.s + x.i / where(x.s > 0, 2, 1))}});
  call.run({.masks = {mask_mod(x.j / (count(x.h) + 1) < 50)}});
}

TEST(ExpressionIndices, AreCheckedByPrecompute) {
  const Symbols x;
  const std::vector<std::int32_t> documents(80);
  const Captured document(ConstView(documents), "document");
  const MaskMod mask = mask_mod(document(x.i) == document(x.j));
  EXPECT_NO_THROW(precompute(mask, 80, 80));
  EXPECT_EQ(error_of([&] { precompute(mask, 80, 81); }),
            "precompute: mask reads document at index 80 of axis 0, which has 80 elements, at b = "
            "0, h = 0, i = 0, j = 80");
}

TEST(ExpressionArrays, MustNotShareMemoryWithOutputs) {
  const Symbols x;
  Call call;
  const Captured rows(ConstView(call.out), "rows");
  EXPECT_EQ(error_of([&] { call.run({.mods = {score_mod(x.s + rows(x.b, x.h, x.i, 0))}}); }),
            "attention: out must not share memory with rows (out float32 [2,3,40,5], rows float32 "
            "[2,3,40,5])");
}

// An expression and the C++ function with the same meaning.
struct Same {
  ScoreMod expression, function;
  bool has_same_derivative = true;  // false where derivatives are rounded in another order
};

std::vector<Same> same_scores(const std::vector<float>& table,
                              const std::vector<std::int32_t>& documents) {
  const Symbols x;
  const Captured slope(ConstView(table), "table");
  const Captured document(ConstView(documents), "documents");
  const float* const t = table.data();
  const std::int32_t* const d = documents.data();
  return {{score_mod(x.s - 0.125F * abs(x.i - x.j)),
           score_mod([](auto s, At at) { return s - 0.125F * abs(at.i - at.j); })},
          {score_mod(x.s + slope(x.i - x.j + 300)),
           score_mod([t](auto s, At at) { return s + t[at.i - at.j + 300]; })},
          {score_mod(x.s * x.s * 0.25F), score_mod([](auto s, At) { return s * s * 0.25F; })},
          {score_mod(where(document(x.i) == document(x.j), x.s, x.s - 2)),
           score_mod([d](auto s, At at) { return select(d[at.i] == d[at.j], s, s - 2); })},
          {score_mod(3 * tanh(x.s / 3)),
           score_mod([](auto s, At) { return 3 * soft_cap(s / 3, 1); }), false},
          {score_mod(max(x.s, 0) + (x.h + x.b)),
           score_mod([](auto s, At at) { return max(s, 0) + (at.h + at.b); })}};
}

TEST(ExpressionCalls, HaveTheBitsOfCppFunctions) {
  std::vector<float> table(700);
  std::vector<std::int32_t> documents(300);
  for (std::size_t n = 0; n < table.size(); ++n) table[n] = 0.01F * static_cast<float>(n % 37);
  for (std::size_t n = 0; n < documents.size(); ++n) {
    documents[n] = static_cast<std::int32_t>(n / 70);
  }
  const Symbols x;
  const MaskMod near_keys = mask_mod(abs(x.i - x.j) <= 150);
  const MaskMod near_function = mask_mod([](At at) { return abs(at.i - at.j) <= 150; });
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Tensor q = normal({2, 4, 140, 16}, 1, dtype), k = normal({2, 2, 270, 16}, 2, dtype);
    const Tensor v = normal({2, 2, 270, 9}, 3, dtype), dout = normal({2, 4, 140, 9}, 4, dtype);
    BackwardCall call{.inputs = {q, k, v}, .sources = {.out = dout}, .threads = 2};
    for (const char* name : {"q", "k", "v"}) call.ask(name, Layout::kContiguous);
    for (const std::string& path : all_paths()) {
      for (const Same& same : same_scores(table, documents)) {
        SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
        std::vector<std::vector<double>> results[2];
        for (const bool of_expression : {false, true}) {
          call.options.mods = {of_expression ? same.expression : same.function};
          call.options.masks = {of_expression ? near_keys : near_function};
          const SavedTensors saved(call, path);
          const Gradients gradients(call);
          run_backward(call, path, saved.views(), gradients);
          auto& found = results[of_expression ? 1 : 0];
          found = {values_of(saved.out), values_of(saved.lse)};
          for (const auto& [name, array] : gradients.arrays()) {
            if (same.has_same_derivative) found.push_back(values_of(contiguous(array.view())));
          }
        }
        EXPECT_TRUE(results[0] == results[1]);
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
