// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "reference/forward.h"
#include "runtime/tasks.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/case.h"
#include "tests/support/compare.h"

// Compares every analytic gradient, on every path, with the complex step (Squire and Trapp 1998):
// the forward reference at x + ih, whose imaginary part is h dL/dx without cancellation. The
// forward pass is the definition, so this tests the backward pass against it directly, without an
// oracle.
namespace qkv::test {
namespace {

using Complex = std::complex<double>;
constexpr double kStep = 1e-150;
constexpr double kTolerance = 1e-12;

const std::map<std::string, std::string> kGradientOf = {{"dq", "q"},
                                                        {"dk", "k"},
                                                        {"dv", "v"},
                                                        {"dnorm_q", "norm_q"},
                                                        {"dnorm_k", "norm_k"},
                                                        {"dbias", "bias"},
                                                        {"dalibi", "alibi"},
                                                        {"dsinks", "sinks"},
                                                        {"dbilinear_w", "bilinear_w"},
                                                        {"dadditive_wq", "additive_wq"},
                                                        {"dadditive_wk", "additive_wk"},
                                                        {"dadditive_v", "additive_v"},
                                                        {"dadditive_b", "additive_b"}};

// The scalar loss sum(dout . out) + sum(dlse . lse) + sum(dweights . weights), as a function of
// one perturbed element.
class Loss {
 public:
  explicit Loss(const Case& c) : case_(c), call_(c, DType::kComplex128) {
    attn::resolve("attention", {}, call_.inputs(), call_.options(), problem_,
                  {.complex = attn::Complex::kAllowed});
    add("out", "dout", {});
    add("lse", "dlse", {});
    add("weights", "dweights", {});
    add("row_weights", "drow_weights", call_.input("rows"));
  }

  // Computes Im L(x + ih e_n) / h for element n of the input of this name.
  double derivative(const std::string& input, std::size_t n) {
    Complex& x = call_.tensor(input)->values<Complex>()[n];
    const Complex before = x;
    x += Complex(0, kStep);
    const core::Results results = attn::bind_outputs(problem_, outputs_);
    reference::Forward<Complex> pass(problem_, results);
    core::MeasuringArena measure;
    reference::Forward<Complex>(problem_, results).take_shared(measure);
    {
      runtime::Call run(context_, "test", measure.bytes(), pass.worker_bytes());
      pass.run(run);
    }
    x = before;
    double sum = 0;
    for (const Term& term : terms_) {
      const auto y = tensors_.at(term.result).values<Complex>();
      for (std::size_t m = 0; m < y.size(); ++m) {
        // An empty row's lse is -inf whatever its inputs are.
        if (std::isfinite(y[m].real())) sum += (*term.gradient)[m] * y[m].imag();
      }
    }
    return sum / kStep;
  }

 private:
  struct Term {
    std::string result;
    const std::vector<double>* gradient;
  };

  void add(const std::string& result, const std::string& gradient, const ConstView& rows) {
    if (!case_.has(gradient)) return;
    tensors_.emplace(result, Tensor(DType::kComplex128, case_.in.at(gradient).shape));
    const View view = tensors_.at(result);
    if (result == "out") outputs_.out = view;
    if (result == "lse") outputs_.lse = view;
    if (result == "weights") outputs_.weights = view;
    if (result == "row_weights") outputs_.weights = {rows, view};
    terms_.push_back({result, &case_.in.at(gradient).values});
  }

  const Case& case_;
  CaseCall call_;
  core::ResolvedProblem problem_;
  std::map<std::string, Tensor> tensors_;
  Outputs outputs_;
  std::vector<Term> terms_;
  Context context_;
};

// Whether a case has a NaN row, that is, NaN or +inf in out, lse or weights. Such a row has no
// derivative to compare. NaN and infinities in masked inputs do not count.
bool has_nan_row(const Case& c) {
  for (const char* name : {"out", "lse", "weights"}) {
    const auto want = c.want.find(name);
    if (want == c.want.end()) continue;
    for (double x : want->second.values) {
      if (std::isnan(x) || x == INFINITY) return true;
    }
  }
  return false;
}

// The derivatives of a case's loss, by the name of the gradient.
std::map<std::string, std::vector<double>> derivatives(const Case& c) {
  std::map<std::string, std::vector<double>> all;
  Loss loss(c);
  for (const auto& [name, array] : c.want) {
    if (!is_gradient(name)) continue;
    const std::string input = kGradientOf.at(name);
    std::vector<double>& values = all[name];
    for (std::size_t n = 0; n < c.in.at(input).values.size(); ++n) {
      values.push_back(loss.derivative(input, n));
    }
  }
  return all;
}

// How many comparisons were made on one path; `arrays` counts by the gradient's name.
struct Compared {
  int cases = 0;
  int elements = 0;
  std::map<std::string, int> arrays;
};

void check_path(const Case& c, const CaseCall& call, const std::string& path,
                const std::map<std::string, std::vector<double>>& want, Compared& compared) {
  Context context = context_on(path);
  const auto forward = run_forward(c, call, context);
  ++compared.cases;
  for (const auto& [name, gradient] : run_backward(c, call, forward, context)) {
    double largest = 1;
    for (double x : want.at(name)) largest = std::max(largest, std::fabs(x));
    compared.elements += static_cast<int>(want.at(name).size());
    ++compared.arrays[name];
    EXPECT_TRUE(compare(name, gradient, want.at(name), {0, kTolerance * largest},
                        "QKV_CASE=" + c.name + " test_attention --gtest_filter=ComplexStep.*"))
        << path;
  }
}

TEST(ComplexStep, EveryGradientOfEveryFiniteCase) {
  const char* only = std::getenv("QKV_CASE");
  std::map<std::string, Compared> compared;
  const PathsOfScores fast = paths_of_scores(&fast_backward_paths);
  std::set<std::string> paths{std::string(kReferencePath)};
  for (const auto& [kind, names] : fast) paths.insert(names.begin(), names.end());
  for (const Case& c : read_cases(QKV_ORACLE_CASES)) {
    if (only != nullptr && c.name != only) continue;
    if (has_nan_row(c) || !c.has("dout")) continue;
    // The reference is slow, and smaller cases cover what cases of more than 64 keys would.
    if (c.in.at("k").shape[c.in.at("k").shape.rank() - 2] > 64) continue;
    const CaseCall call(c, DType::kFloat64);
    const auto want = derivatives(c);
    for (const std::string& path : paths) {
      if (!takes_backward(path, call.inputs(), call.options())) continue;
      check_path(c, call, path, want, compared[path]);
    }
  }
  for (const auto& [path, counts] : compared) {
    std::printf("%s: complex step: %d cases, %d derivatives\n", path.c_str(), counts.cases,
                counts.elements);
  }
  if (only != nullptr) return;
  const std::string reference(kReferencePath);
  EXPECT_GE(compared[reference].cases, 300);
  for (const auto& [name, input] : kGradientOf) {
    EXPECT_GE(compared[reference].arrays[name], 20) << name;
  }
  for (const auto& [kind, names] : fast) {
    for (const std::string& path : names) {
      EXPECT_GE(compared[path].cases, kind == ScoreKind::kBilinear ? 100 : 150) << path;
      std::vector<const char*> gradients{"dq",      "dk",    "dv",     "dnorm_q",
                                         "dnorm_k", "dbias", "dalibi", "dsinks"};
      if (kind == ScoreKind::kBilinear) gradients.push_back("dbilinear_w");
      if (kind == ScoreKind::kAdditive) {
        for (const char* name : {"dadditive_wq", "dadditive_wk", "dadditive_v", "dadditive_b"}) {
          gradients.push_back(name);
        }
      }
      for (const char* name : gradients) {
        EXPECT_GE(compared[path].arrays[name], 10) << path << ", " << name;
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
