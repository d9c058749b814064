// SPDX-License-Identifier: Apache-2.0
// The group "values" compares calls whose weights are of every size with calls of similar weights.
// No call may be slow because of its values, as it would be if it computed with subnormal numbers.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <qkv/mods.h>

#include "groups.h"

namespace qkv::bench {
namespace {

// An option with two values: `value`, by which many weights vanish, and `harmless`.
struct ValueCase {
  std::string name;
  void (*apply)(Problem& problem, float value);
  float value;
  float harmless;
};

void set_slopes(Problem& p, float slope) {
  const View slopes = p.add(DType::kFloat32, {p.shape.H});
  std::fill_n(slopes.as<float>(), p.shape.H, slope);
  p.options.alibi = slopes;
}

void set_slopes_and_dropout(Problem& p, float slope) {
  set_slopes(p, slope);
  p.options.dropout = {0.1, 7};
}

void set_decay(Problem& p, float slope) {
  p.options.mods = {score_mod([slope](auto s, At at) { return s - slope * abs(at.i - at.j); })};
}

// Adds `bias` to the scores of every second block of 64 keys.
void set_bias(Problem& p, float bias) {
  const View all = p.add(DType::kFloat32, {p.shape.Tq, p.shape.Tk});
  for (Index n = 0; n < all.element_count(); ++n) {
    all.as<float>()[n] = n % p.shape.Tk / 64 % 2 == 0 ? 0 : bias;
  }
  p.options.bias = all;
}

// A term of the scores that makes lse larger than 16, whatever the factor is. So the backward pass
// of both compared calls reads the keys once more, for the correction c
// (docs/semantics.md#backward).
constexpr float kLarge = 40;

// Raw scores have the standard deviation 30 and are capped at 30.
void set_soft_cap(Problem& p, float factor) {
  constexpr double kDeviation = 30;
  p.options.softcap = kDeviation;
  p.options.scale = kDeviation / std::sqrt(static_cast<double>(p.shape.D));
  p.options.mods = {score_mod([factor](auto s, At) { return s * factor + kLarge; })};
}

void set_square(Problem& p, float factor) {
  p.options.mods = {score_mod([factor](auto s, At) { return s * s * factor + kLarge; })};
}

std::vector<ValueCase> cases() {
  constexpr float kGentle = 0x1p-13F;
  std::vector<ValueCase> all;
  for (int exponent = 1; exponent <= 8; ++exponent) {
    const float slope = std::ldexp(1.0F, -exponent);
    all.push_back({fmt::format("alibi-{}", slope), set_slopes, slope, kGentle});
  }
  for (const float slope : {0.125F, 0.0625F}) {
    all.push_back({fmt::format("decay-{}", slope), set_decay, slope, kGentle});
  }
  for (const float bias : {-80.0F, -85.0F, -90.0F, -100.0F}) {
    all.push_back({fmt::format("bias{}", bias), set_bias, bias, -1});
  }
  all.push_back({"alibi-0.125-dropout", set_slopes_and_dropout, 0.125F, kGentle});
  all.push_back({"soft-cap", set_soft_cap, 2, 0.01F});
  all.push_back({"square", set_square, 16, 0.01F});
  return all;
}

void run_case(Session& session, const ValueCase& one, Pass pass) {
  constexpr double kTarget = 1.1;
  constexpr double kEffort = 0.25;
  const Shape shape = square(session.length(2048), 64);
  const auto problem_of = [&](float value) {
    Problem problem = make_problem(shape);
    one.apply(problem, value);
    if (pass == Pass::kBackward) make_backward(problem);
    return problem;
  };
  Problem problem = problem_of(one.value);
  Problem harmless = problem_of(one.harmless);
  const std::string name =
      fmt::format("values/{}{}", one.name, pass == Pass::kBackward ? "-backward" : "");
  session.against({name, kTarget, 1, kEffort}, problem, harmless, Figure::kHarmlessRatio);
}

}  // namespace

void run_values(Session& session) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const ValueCase& one : cases()) {
      // A quick run has one case without and one with a soft-cap; the others run the same code.
      const bool is_quick_case = one.name == "alibi-0.5" || one.name == "soft-cap";
      if (session.is_quick() && !is_quick_case) continue;
      run_case(session, one, pass);
    }
  }
}

}  // namespace qkv::bench
