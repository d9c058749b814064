// SPDX-License-Identifier: Apache-2.0
// Runs with result.patch, which adds max_weight. On every path of this processor, with and without
// a sink, max_weight is the largest of the weights, and a plan that writes nothing else gives the
// same bits. Wrong arrays for max_weight are errors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/qkv.h>

namespace {

using qkv::ConstView;
using qkv::Index;
using qkv::View;

constexpr Index kRows = 70;
constexpr Index kWidth = 8;
using Numbers = std::vector<float>;

Numbers numbers(double step) {
  Numbers x;
  for (Index n = 0; n < kRows * kWidth; ++n) {
    x.push_back(static_cast<float>(2 * std::sin(step * static_cast<double>(n))));
  }
  return x;
}

View rows(Numbers& x) { return View(x.data(), {kRows, kWidth}); }
View each(Numbers& x) { return View(x.data(), {kRows}); }

// The largest weight of each query. The weight of a sink is 1 minus the sum of the others.
Numbers largest(const Numbers& weights, bool with_sink) {
  Numbers all;
  for (auto row = weights.begin(); row != weights.end(); row += kRows) {
    double sum = 0;
    for (auto x = row; x != row + kRows; ++x) sum += static_cast<double>(*x);
    const float most = *std::max_element(row, row + kRows);
    all.push_back(with_sink ? std::max(most, static_cast<float>(1 - sum)) : most);
  }
  return all;
}

bool near(const Numbers& a, const Numbers& b) {
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (!(std::abs(a[n] - b[n]) < 1e-5F)) return false;
  }
  return true;
}

int wrong = 0;
void expect(bool right, const std::string& what) {
  if (!right) std::printf("%s: wrong\n", what.c_str());
  wrong += right ? 0 : 1;
}

template <class Call>
void expect_error(const std::string& argument, const Call& call) {
  try {
    call();
    expect(false, "no error for " + argument);
  } catch (const qkv::Error& error) {
    expect(error.argument() == argument, error.what());
  }
}

void check(const std::string& path) {
  Numbers q = numbers(0.7), k = numbers(1.3), v = numbers(2.1), sink(1, 1.5F);
  Numbers out(kRows * kWidth), weights(kRows * kRows), got(kRows), again(kRows), lse(kRows);
  const qkv::Inputs inputs{.q = rows(q), .k = rows(k), .v = rows(v)};
  qkv::Context context;
  context.force_path(path);
  for (const bool with_sink : {false, true}) {
    qkv::Options options;
    options.masks.push_back(qkv::Window{.left = 20, .right = -1});
    options.diagonal = qkv::Offset{30};  // the last queries have no key
    if (with_sink) options.sinks = ConstView(sink.data(), qkv::Dims(1));
    qkv::Outputs outputs;
    outputs.out = rows(out);
    outputs.weights = View(weights.data(), {kRows, kRows});
    outputs.max_weight = each(got);
    qkv::attention(inputs, options, outputs, context);
    expect(near(got, largest(weights, with_sink)), path + ", beside weights");
    expect(with_sink ? got.back() == 1 : got.back() == 0, path + ", of a query without keys");

    qkv::Outputs alone;
    alone.max_weight = each(again);
    qkv::Plan plan(inputs, options, context);
    plan.run(inputs, alone);
    std::fill(again.begin(), again.end(), -1.0F);
    plan.run(inputs, alone);
    expect(again == got, path + ", alone, in a plan");
    alone.max_weight = each(lse);
    plan.run(inputs, alone);
    expect(lse == got, path + ", elsewhere, in a plan");
  }
  qkv::Outputs outputs;
  outputs.max_weight = rows(out);
  expect_error("max_weight", [&] { qkv::attention(inputs, {}, outputs, context); });
  outputs.lse = outputs.max_weight = each(lse);
  expect_error("max_weight", [&] { qkv::attention(inputs, {}, outputs, context); });
}

}  // namespace

int main() {
  int paths = 0;
  for (const std::string_view target : qkv::cpu_targets()) {
    const std::string name(target);
    check(name == "reference" ? name : "dot/" + name);
    ++paths;
  }
  std::printf("%d paths, %d wrong\n", paths, wrong);
  return wrong == 0 && paths > 1 ? 0 : 1;
}
