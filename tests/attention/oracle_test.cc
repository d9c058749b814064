// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/case.h"
#include "tests/attention/paths.h"
#include "tests/support/compare.h"

// Compares the library in float64 with tests/oracle.py, which was written from the semantics alone.
// The macro QKV_ORACLE_CASES is the path of the script's output; QKV_CASE=NAME in the environment
// runs one case.
namespace qkv::test {
namespace {

constexpr double kTolerance = 1e-12;  // times the array's largest element, or 1 if that is larger

double largest(const Array& array) {
  double value = 1;
  for (double x : array.values) {
    if (std::isfinite(x)) value = std::max(value, std::fabs(x));
  }
  return value;
}

struct Counts {
  int cases = 0;
  int arrays = 0;
  int gradients = 0;
};

void check(const Case& c, const std::map<std::string, Tensor>& results, Counts& counts) {
  for (const auto& [name, got] : results) {
    const Array& want = c.want.at(name);
    ++(is_gradient(name) ? counts.gradients : counts.arrays);
    EXPECT_TRUE(compare(name, got, want.values, {0, kTolerance * largest(want)},
                        "QKV_CASE=" + c.name + " test_attention --gtest_filter=Oracle.*"));
  }
}

TEST(Oracle, Float64AgreesForwardAndEveryGradient) {
  const char* only = std::getenv("QKV_CASE");
  Counts counts;
  Context context;
  for (const Case& c : read_cases(QKV_ORACLE_CASES)) {
    if (only != nullptr && c.name != only) continue;
    ++counts.cases;
    SCOPED_TRACE(c.name);
    try {
      const CaseCall call(c, DType::kFloat64);
      const auto forward = run_forward(c, call, context);
      const auto gradients = run_backward(c, call, forward, context);
      EXPECT_EQ(forward.size() + gradients.size(), c.want.size());
      check(c, forward, counts);
      check(c, gradients, counts);
    } catch (const std::exception& error) {
      ADD_FAILURE() << c.name << ": " << error.what();
    }
  }
  std::printf("oracle: %d cases, %d results, %d gradients compared\n", counts.cases, counts.arrays,
              counts.gradients);
  if (only == nullptr) {
    EXPECT_GE(counts.cases, 400);
    EXPECT_GE(counts.gradients, 2000);
  } else {
    EXPECT_EQ(counts.cases, 1) << "QKV_CASE=" << only << " is not the name of a case";
  }
}

// Each fast path agrees with the forward results of the cases that it supports.
TEST(Oracle, Float64AgreesOnEveryPath) {
  const char* only = std::getenv("QKV_CASE");
  const std::vector<Case> cases = read_cases(QKV_ORACLE_CASES);
  std::set<std::string> paths;
  for (const ScoreKind kind : kScoreKinds) {
    const std::vector<std::string> of_kind = fast_paths(kind);
    paths.insert(of_kind.begin(), of_kind.end());
  }
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    Counts counts;
    Context context = context_on(path);
    for (const Case& c : cases) {
      if (only != nullptr && c.name != only) continue;
      const CaseCall call(c, DType::kFloat64);
      if (refusal(path, call.inputs(), call.options()).has_value()) continue;
      ++counts.cases;
      SCOPED_TRACE(c.name);
      try {
        check(c, run_forward(c, call, context), counts);
      } catch (const std::exception& error) {
        ADD_FAILURE() << c.name << ": " << error.what();
      }
    }
    std::printf("oracle: %s: %d cases, %d results compared\n", path.c_str(), counts.cases,
                counts.arrays);
    if (only == nullptr) {
      EXPECT_GE(counts.cases, path.starts_with("additive") ? 150 : 200)
          << "cases that the path supports";
    }
  }
}

}  // namespace
}  // namespace qkv::test
