// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/backward_call.h"
#include "tests/attention/bits.h"
#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/attention/plain_head.h"
#include "tests/support/compare.h"

// The error bound of docs/semantics.md for gradients, on every path: at most three times the error
// of the naive computation (float32 sums in one order) plus 4 ulp of the largest value. The oracle
// is the naive computation in float64. Inputs are random or ill-conditioned.
namespace qkv::test {
namespace {

enum class Kind { kRandom, kLarge, kDominated, kEqual, kTiny };
constexpr const char* kKinds[] = {"random", "large scores", "one key dominates", "equal keys",
                                  "tiny"};

Head make_head(Kind kind, Index Tq, Index Tk, Index D, Index E) {
  const float deviation = kind == Kind::kLarge ? 30 : kind == Kind::kTiny ? 0.01F : 1;
  Head x = random_head(Tq, Tk, D, E, deviation);
  if (kind == Kind::kDominated) dominate(x, Tk / 2);
  for (Index j = 1; kind == Kind::kEqual && j < Tk; ++j) {
    copy(slice(ConstView(x.k), 0, 0, 1), slice(x.k, 0, j, j + 1));
  }
  return x;
}

void check(Kind kind, const Head& x, const std::vector<std::string>& paths) {
  const PlainResults truth = plain_results<double>(x);
  const PlainResults naive = plain_results<float>(x);
  Tensor sinks(DType::kFloat32, Dims(1));
  sinks.values<float>()[0] = static_cast<float>(x.sink);
  BackwardCall call{.inputs = {x.q, x.k, x.v}, .sources = {.out = x.dout}, .threads = 2};
  if (std::isfinite(x.sink)) call.options.sinks = sinks;
  for (const char* name : {"q", "k", "v"}) call.ask(name, Layout::kContiguous);
  for (const std::string& path : paths) {
    const SavedTensors saved(call, path);
    const Gradients got(call);
    run_backward(call, path, saved.views(), got);
    const auto check_one = [&](const char* name, std::vector<double> PlainResults::*of) {
      const std::vector<double>& want = truth.*of;
      const double bound = 3 * largest_difference(naive.*of, want) + 4 * ulp(largest(want));
      const double error = largest_difference(values_of(got.arrays().at(name).view()), want);
      EXPECT_LE(error, bound) << path << ", d" << name << ", " << kKinds[static_cast<int>(kind)]
                              << ", Tq " << x.Tq << ", Tk " << x.Tk;
    };
    check_one("q", &PlainResults::dq);
    check_one("k", &PlainResults::dk);
    check_one("v", &PlainResults::dv);
  }
}

TEST(BackwardPathPrecision, IsWithinTheBoundOfTheNaiveComputation) {
  for (const Kind kind :
       {Kind::kRandom, Kind::kLarge, Kind::kDominated, Kind::kEqual, Kind::kTiny}) {
    for (const Index T : {1, 3, 100, 1000}) {
      if (T > 100 && !is_thorough()) continue;
      const Head x = make_head(kind, T, T, 64, 32);
      check(kind, x, T > 100 ? fast_backward_paths() : all_backward_paths());
    }
  }
}

// Long sequences, of which only some queries or some keys are computed. Gradients of a query need
// all keys. Gradients of a key need all queries; in such calls a sink replaces the T - sampled keys
// that are left out, with the weight of as many keys of score 0.
TEST(BackwardPathPrecision, IsWithinTheBoundForSomeOfManyRows) {
  const Index sampled = at_scale(256, 16);
  for (const Index T : {8192, at_scale(65536, 5461)}) {
    for (const Kind kind : {Kind::kRandom, Kind::kLarge, Kind::kDominated, Kind::kTiny}) {
      if (T > 8192 && (kind == Kind::kTiny || kind == Kind::kDominated)) continue;
      const Head of_queries = make_head(kind, sampled, T, 16, 16);
      check(kind, of_queries, fast_backward_paths());
      Head of_keys = make_head(kind, T, sampled, 16, 16);
      of_keys.sink = std::log(static_cast<double>(T - sampled));
      check(kind, of_keys, fast_backward_paths());
    }
  }
}

}  // namespace
}  // namespace qkv::test
