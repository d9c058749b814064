// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/conformance.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"

// Compares every path with the reference on random calls over all shapes, memory layouts, options,
// outputs and special values. A failure prints the command that repeats its call alone, with
// QKV_CONFORMANCE=SEED:INDEX. QKV_CONFORMANCE=SEED runs the calls of another seed.
namespace qkv::test {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr int kLeastOfEach = 2;  // the least number of calls with a feature, per path and part

void run(const RandomCall& call, std::string_view path, const Results& results) {
  Context context = context_on(path);
  attention(call.inputs(), call.options(), results.outputs(), context);
}

// Returns the first difference of a path from the reference in one call, or "". Elements that are
// not written differ, since the buffers of `want` start with another number.
std::string conform(const RandomCall& call, const std::string& path, const Results& want) {
  const Results got(call, -777);
  try {
    run(call, path, got);
  } catch (const std::exception& error) {
    return error.what();
  }
  for (const auto& [name, array] : got.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return name + ": " + intact.message();
  }
  for (const Guarded& array : call.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return intact.message();
  }
  return Agreement::check(call, path, got, want);
}

void check_paths(const RandomCall& call, std::string_view reference,
                 const std::vector<std::string>& paths, const std::string& replay,
                 Findings& findings) {
  const Results want(call, 555);
  try {
    run(call, reference, want);
  } catch (const std::exception& error) {
    return findings.tell(reference, error.what(), replay);
  }
  for (const std::string& path : paths) {
    findings.count(path, call.features());
    const std::string difference = conform(call, path, want);
    if (!difference.empty()) findings.tell(path, difference, replay);
  }
}

class Conformance : public testing::TestWithParam<int> {};

TEST_P(Conformance, EveryPathAgreesWithTheReference) {
  Findings findings;
  const PathsOfScores fast = paths_of_scores([](ScoreKind kind) { return fast_paths(kind); });
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool again) {
    const RandomCall call(seed, index);
    std::vector<std::string> paths = fast.at(call.score());
    std::erase_if(paths, [&](const std::string& path) {
      return refusal(path, call.inputs(), call.options()).has_value();
    });
    if (again) paths.emplace_back(kReferencePath);
    check_paths(call, kReferencePath, paths,
                replay_of(call.describe(), seed, index, "*/Conformance.*0"), findings);
  };
  if (!run_part(kSeed, GetParam(), at_scale(600, 12), findings, check)) return;
  for (const auto& [kind, paths] : fast) {
    for (const std::string& path : paths) {
      for (const std::string_view features : {kCoveredOfCalls, kCoveredOutputs, covered_of(kind)}) {
        findings.expect_met_at_scale(path, features, kLeastOfEach, false);
      }
      EXPECT_GT(findings.counts[path]["-> out"], 0) << path;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Part, Conformance, testing::Range(0, kParts));

// Paths with products of BF16 agree with the reference that has the same products.
TEST(BFloat16Conformance, AgreesWithTheReferenceOfItsProducts) {
  const std::vector<std::string> paths = bfloat16_paths();
  if (paths.empty()) GTEST_SKIP() << "this CPU has no products of BF16";
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    const RandomCall call(seed, index, RandomCall::Draw::kBFloat16);
    for (const std::string& path : paths) {
      check_paths(call, reference_of(path), {path},
                  replay_of(call.describe(), seed, index, "BFloat16Conformance*"), findings);
    }
  };
  if (!run_part(kSeed, 0, at_scale(400, 24), findings, check)) return;
  for (const std::string& path : paths) {
    for (const std::string_view features :
         {kCoveredOfCalls, kCoveredOutputs, covered_of(ScoreKind::kDot)}) {
      findings.expect_met_at_scale(path, features, kLeastOfEach, true);
    }
  }
}

}  // namespace
}  // namespace qkv::test
