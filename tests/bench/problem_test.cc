// SPDX-License-Identifier: Apache-2.0
#include "bench/problem.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>
#include <qkv/mods.h>

#include "bench/check.h"
#include "bench/session.h"

namespace {

using qkv::Index;
using qkv::Options;
using qkv::bench::Problem;
using qkv::bench::square;

// The number of query-key pairs that the library leaves unmasked: those with a weight other than 0.
double pairs_in_weights(Problem& problem) {
  const qkv::bench::Shape& s = problem.shape;
  qkv::Tensor weights(qkv::DType::kFloat32, {s.B, s.H, s.Tq, s.Tk});
  attention(problem.inputs(), problem.options, {.out = problem.out, .weights = weights.view()});
  double pairs = 0;
  for (const float weight : weights.values<float>()) pairs += weight != 0 ? 1 : 0;
  return pairs;
}

// The result of live_pairs(). Expects the library to have as many live pairs.
double counted(Index Tq, Index Tk, const Options& options) {
  Problem problem = qkv::bench::make_problem({.Tq = Tq, .Tk = Tk, .D = 2});
  problem.options = options;
  const double pairs = qkv::bench::live_pairs(Tq, Tk, options);
  EXPECT_EQ(pairs, pairs_in_weights(problem));
  return pairs;
}

TEST(LivePairs, OfThePlainCallAreAll) { EXPECT_EQ(counted(5, 7, {}), 35); }

TEST(LivePairs, OfCausalMasksFollowTheDiagonal) {
  EXPECT_EQ(counted(6, 6, {.masks = {qkv::Causal{}}}), 21);
  EXPECT_EQ(counted(2, 6, {.masks = {qkv::Causal{}}}), 11);
  EXPECT_EQ(counted(6, 2, {.masks = {qkv::Causal{}}}), 3);  // four rows are empty
  EXPECT_EQ(counted(2, 6, {.diagonal = qkv::TopLeft{}, .masks = {qkv::Causal{}}}), 3);
  EXPECT_EQ(counted(2, 6, {.diagonal = qkv::Offset{1}, .masks = {qkv::Causal{}}}), 5);
}

TEST(LivePairs, OfWindowsAreABand) {
  EXPECT_EQ(counted(6, 6, {.masks = {qkv::Window{1, 1}}}), 16);
  EXPECT_EQ(counted(2, 6, {.masks = {qkv::Window{1, 0}}}), 4);
  EXPECT_EQ(counted(6, 6, {.masks = {qkv::Window{2, -1}, qkv::Causal{}}}), 15);
}

TEST(Work, IsFourOperationsForEachLivePairAndChannelAndTenBackward) {
  Problem problem = qkv::bench::make_problem({.B = 2, .H = 3, .Tq = 4, .Tk = 4, .D = 5});
  EXPECT_EQ(qkv::bench::work_of(problem), 4.0 * 2 * 3 * 16 * 5);
  problem.options.masks = {qkv::Causal{}};
  EXPECT_EQ(qkv::bench::work_of(problem), 4.0 * 2 * 3 * 10 * 5);
  EXPECT_EQ(qkv::bench::array_bytes(problem), 2.0 * 3 * 16 * 4);
  make_backward(problem);
  EXPECT_EQ(qkv::bench::work_of(problem), 10.0 * 2 * 3 * 10 * 5);
}

TEST(Work, CountsTheWidthOfValuesByItself) {
  Problem problem = qkv::bench::make_problem({.Tq = 4, .Tk = 3, .D = 5, .E = 7});
  EXPECT_EQ(problem.out.shape(), (qkv::Dims{1, 1, 4, 7}));
  EXPECT_EQ(qkv::bench::work_of(problem), 2.0 * 12 * (5 + 7));
  make_backward(problem);
  EXPECT_EQ(qkv::bench::work_of(problem), 2.0 * 12 * (3 * 5 + 2 * 7));
}

TEST(Work, OfAdditiveScoresIsTheirUnits) {
  Problem problem = qkv::bench::make_problem({.B = 2, .H = 3, .Tq = 4, .Tk = 4, .D = 5});
  score_additive(problem, 9);
  EXPECT_EQ(qkv::bench::units_of(problem), 9);
  EXPECT_EQ(qkv::bench::work_of(problem), 2.0 * 3 * 16 * 9);
  EXPECT_EQ(qkv::bench::array_bytes(problem), 2.0 * 3 * 16 * 9 * 4);
  make_backward(problem);
  EXPECT_EQ(qkv::bench::work_of(problem), 2.0 * 3 * 16 * 9);
}

// ---- has_score_alone() and make_backward() --------------------------------------------------

TEST(ScoreAlone, IsWhatACallHasWithoutOtherOptionsPagesAndResults) {
  const auto holds = [](auto change) {
    Problem problem = qkv::bench::make_problem({.Tq = 4, .Tk = 16, .D = 8});
    change(problem);
    return qkv::bench::has_score_alone(problem);
  };
  EXPECT_TRUE(holds([](Problem&) {}));
  EXPECT_TRUE(holds([](Problem& p) { score_additive(p, 9); }));
  EXPECT_TRUE(holds([](Problem& p) { p.options.diagonal = qkv::TopLeft{}; }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.scale = 8; }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.softcap = 30; }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.qk_norm = qkv::QkNorm{}; }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.rotary = qkv::Rotary{}; }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.masks = {qkv::Causal{}}; }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.bias = p.add_random({4, 16}, 5); }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.alibi = p.add_random({1}, 5); }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.sinks = p.add_random({1}, 5); }));
  EXPECT_FALSE(holds([](Problem& p) { p.options.dropout = {0.1, 7}; }));
  EXPECT_FALSE(holds([](Problem& p) {
    p.options.mods = {qkv::score_mod([](auto s, qkv::At) { return s + 1; })};
  }));
  EXPECT_FALSE(holds([](Problem& p) { set_in_pages(p, 16); }));
  EXPECT_FALSE(holds([](Problem& p) { p.besides.entropy = p.add_random({1, 1, 4}, 5); }));
  EXPECT_FALSE(holds([](Problem& p) { p.besides.column_sums = p.add_random({1, 1, 16}, 5); }));
}

TEST(MakeBackward, RefusesQ8) {
  Problem problem = qkv::bench::make_problem({.Tq = 4, .Tk = 4, .D = 32, .dtype = qkv::DType::kQ8});
  EXPECT_THROW(make_backward(problem), qkv::Error);
}

// ---- the comparison with the reference ------------------------------------------------------

// Makes the forward call, adds `change` to the number of out at `index`, and returns the fault that
// is then found.
std::string fault_after(Problem& problem, const qkv::Dims& index, float change) {
  attention(problem.inputs(), problem.options, {.out = problem.out});
  EXPECT_EQ(fault_of(problem, problem.results()), "");
  problem.out.at<float>(index) += change;
  return fault_of(problem, problem.results());
}

TEST(Check, FindsAWrongNumber) {
  Problem problem = qkv::bench::make_problem(square(9, 4));
  EXPECT_NE(fault_after(problem, {0, 0, 5, 3}, 0.001F), "");
}

TEST(Check, FindsNaN) {
  Problem problem = qkv::bench::make_problem(square(9, 4));
  EXPECT_NE(fault_after(problem, {0, 0, 8, 0}, std::numeric_limits<float>::quiet_NaN()), "");
}

TEST(Check, LetsTheLastBitsPass) {
  Problem problem = qkv::bench::make_problem(square(9, 4));
  EXPECT_EQ(fault_after(problem, {0, 0, 5, 3}, 1e-7F), "");
}

TEST(Check, IsOfTheCallThatIsTimed) {
  Problem problem = qkv::bench::make_problem(square(9, 4));
  qkv::bench::Session session({.size = qkv::bench::Size::kQuick});
  session.alone({"right"}, problem,
                [&] { attention(problem.inputs(), problem.options, {.out = problem.out}); });
  EXPECT_EQ(session.rows().back().fault, "");
  session.alone({"writes nothing"}, problem, [] {});
  EXPECT_NE(session.rows().back().fault, "");
}

TEST(Check, SamplesTheLastRowOfLargeProblems) {
  Problem problem = qkv::bench::make_problem({.B = 2, .H = 2, .Tq = 600, .Tk = 300, .D = 32});
  problem.options.masks = {qkv::Causal{}};
  problem.options.diagonal = qkv::TopLeft{};
  ASSERT_GT(qkv::bench::work_of(problem), 0x1p26);  // from here on, fault_of() checks samples
  EXPECT_NE(fault_after(problem, {1, 1, 599, 31}, 0.001F), "");
}

// ---- the comparison of gradients ------------------------------------------------------------

// A problem with masks and a bias, so that dbias is a result. No option needs the indices i and j
// themselves, so fault_of() can compute any part of the problem alone.
Problem biased(Index Tq, Index Tk, Index D) {
  Problem problem = qkv::bench::make_problem({.Tq = Tq, .Tk = Tk, .D = D});
  const qkv::View keep = problem.add(qkv::DType::kBool, {Tq, Tk});
  for (Index n = 0; n < keep.element_count(); ++n) keep.as<bool>()[n] = n % 5 != 1;
  problem.options.masks = {qkv::Causal{}, qkv::Keep{keep}};
  problem.options.bias = problem.add_random({Tq, Tk}, 9);
  return problem;
}

void run_backward(Problem& problem) {
  make_backward(problem);
  qkv::bench::Kernel(problem, 1, nullptr).run();
  EXPECT_EQ(fault_of(problem, problem.results()), "");
}

// The faults that are found when the last number of each gradient, one at a time, is multiplied by
// 1 + change.
std::vector<std::string> faults_after(Problem& problem, float change) {
  std::vector<std::string> faults;
  for (const qkv::View& gradient : problem.results()) {
    float& last = gradient.as<float>()[gradient.element_count() - 1];
    const float correct = last;
    last *= 1 + change;
    faults.push_back(fault_of(problem, problem.results()));
    last = correct;
  }
  return faults;
}

// The name of the gradient in which a fault was found.
std::string name_in(const std::string& fault) { return fault.substr(0, fault.find(':')); }

// Expects that a changed number is found in each of the gradients `names`, and that changes of last
// bits are no faults.
void expect_found(Problem& problem, const std::vector<std::string>& names) {
  run_backward(problem);
  const std::vector<std::string> faults = faults_after(problem, 0.5F);
  ASSERT_EQ(faults.size(), names.size());
  for (std::size_t n = 0; n < names.size(); ++n) EXPECT_EQ(name_in(faults[n]), names[n]);
  for (const std::string& fault : faults_after(problem, 1e-7F)) EXPECT_EQ(fault, "");
}

TEST(CheckOfGradients, FindsAWrongNumberInEach) {
  Problem problem = biased(9, 11, 4);
  expect_found(problem, {"dq", "dk", "dv", "dbias"});
}

TEST(CheckOfGradients, FindsAWrongNumberInGradientsOfParameters) {
  Problem additive = qkv::bench::make_problem({.B = 2, .Tq = 9, .Tk = 11, .D = 4, .E = 6});
  score_additive(additive, 33);
  expect_found(additive, {"dq", "dk", "dv", "the score's dWq", "the score's dWk", "the score's dv",
                          "the score's db"});
  Problem bilinear = qkv::bench::make_problem({.B = 2, .Tq = 9, .Tk = 11, .D = 4, .E = 6});
  score_bilinear(bilinear);
  expect_found(bilinear, {"dq", "dk", "dv", "the score's dW"});
}

TEST(CheckOfGradients, FindsAGradientThatIsNotWritten) {
  Problem problem = biased(9, 11, 4);
  run_backward(problem);
  const std::vector<std::string> names = {"dq", "dk", "dv", "dbias"};
  const std::vector<qkv::View> gradients = problem.results();
  ASSERT_EQ(gradients.size(), names.size());
  for (std::size_t n = 0; n < names.size(); ++n) {
    const qkv::Tensor correct = contiguous(gradients[n]);
    std::fill_n(gradients[n].as<float>(), correct.element_count(), 0.0F);  // as before the call
    EXPECT_EQ(name_in(fault_of(problem, gradients)), names[n]);
    copy(correct, gradients[n]);
    gradients[n].as<float>()[7] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(name_in(fault_of(problem, gradients)), names[n]);
    copy(correct, gradients[n]);
  }
}

TEST(CheckOfGradients, SamplesTheLastQueriesAndKeysOfLargeProblems) {
  Problem problem = biased(400, 450, 80);
  expect_found(problem, {"dq", "dk", "dv", "dbias"});
  EXPECT_GT(qkv::bench::work_of(problem), 0x1p26);  // from here on, fault_of() checks samples
}

TEST(CheckOfGradients, SamplesTheFirstOnesIfOptionsNeedIndices) {
  Problem problem = qkv::bench::make_problem(square(300, 80));
  // Dropout and the mod depend on indices, which are the same only in parts that begin at index 0.
  problem.options.dropout = {0.3, 7};
  problem.options.mods = {
      qkv::score_mod([](auto s, qkv::At at) { return s * (at.i % 3 == 0 ? 0.5F : 1.0F); })};
  run_backward(problem);
  ASSERT_GT(qkv::bench::work_of(problem), 0x1p26);
  for (const qkv::View& gradient : problem.results()) {
    gradient.as<float>()[3] += 0.1F;
    EXPECT_NE(fault_of(problem, problem.results()), "");
    gradient.as<float>()[3] -= 0.1F;
  }
}

TEST(RandomNumbers, HaveMeanZeroAndVarianceOne) {
  Problem problem;
  const qkv::View view = problem.add_random({100000}, 3);
  double sum = 0;
  double squares = 0;
  for (Index n = 0; n < view.element_count(); ++n) {
    const double value = view.as<float>()[n];
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 100000, 0, 0.02);
  EXPECT_NEAR(squares / 100000, 1, 0.02);
}

TEST(Layouts, HaveTheSameNumbersInOtherOrders) {
  constexpr Index kPage = 16;
  const qkv::bench::Shape shape{.B = 2, .H = 4, .G = 2, .Tq = 1, .Tk = 3 * kPage, .D = 3, .E = 2};
  Problem tokens = qkv::bench::make_problem(shape);
  set_by_token(tokens);
  EXPECT_EQ(tokens.v.shape(), (qkv::Dims{2, 2, 3 * kPage, 2}));
  EXPECT_EQ(tokens.v.strides(), (qkv::Dims{3 * kPage * 2 * 2, 2, 2 * 2, 1}));
  Problem pages = qkv::bench::make_problem(shape);
  set_in_pages(pages, kPage);
  attention(pages.inputs(), {}, {.out = pages.out});
  EXPECT_EQ(fault_of(pages, pages.results()), "");
  // Copies each page, which occurs once in the block tables, to the keys and values of `tokens`
  // that it stands for.
  std::vector<bool> seen(2 * 3);
  for (Index b = 0; b < shape.B; ++b) {
    for (Index n = 0; n < 3; ++n) {
      const Index page = pages.block_tables.at<Index>({b, n});
      ASSERT_TRUE(page >= 0 && page < 6 && !seen[static_cast<std::size_t>(page)]);
      seen[static_cast<std::size_t>(page)] = true;
      for (const auto& [from, to] : {std::pair{pages.k, tokens.k}, std::pair{pages.v, tokens.v}}) {
        const qkv::View rows = slice(slice(to, 0, b, b + 1), 2, n * kPage, (n + 1) * kPage);
        copy(permute(slice(from, 0, page, page + 1), {0, 2, 1, 3}), rows);
      }
    }
  }
  attention(tokens.inputs(), {}, {.out = tokens.out});
  EXPECT_EQ(qkv::bench::difference(pages.out, tokens.out, 0), "");
}

}  // namespace
