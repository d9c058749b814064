// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"

// Every path against the reference: random calls over all shapes, memory layouts, options, outputs
// and special values. A failure prints a line; QKV_CONFORMANCE=SEED:INDEX runs that call alone,
// SEED other calls.
namespace qkv::test {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr int kParts = 4;  // tests that ctest may run in parallel
// Calls per part, and the minimum with each feature among them, per path.
int calls_per_part() { return at_scale(600, 12); }
int least_of_each() { return is_thorough() ? 2 : 0; }

// The features every path must have met; drawn often enough in every part.
constexpr const char* kCovered[] = {"scale",
                                    "softcap",
                                    "mods",
                                    "mods -inf",
                                    "bias",
                                    "bias -inf",
                                    "top left",
                                    "bottom right",
                                    "offset",
                                    "offsets",
                                    "alibi",
                                    "causal",
                                    "window",
                                    "keep",
                                    "padding",
                                    "lengths",
                                    "lengths per query",
                                    "mask_mod",
                                    "sinks",
                                    "odd sink",
                                    "dropout",
                                    "packed",
                                    "empty sequence",
                                    "grouped heads",
                                    "rank 2",
                                    "rank 3",
                                    "rank 4",
                                    "rank 5",
                                    "mixed ranks",
                                    "no v",
                                    "named rows",
                                    "all rows",
                                    "top",
                                    "top more than keys",
                                    "-> out",
                                    "-> lse",
                                    "-> row_max",
                                    "-> entropy",
                                    "-> column_sums",
                                    "-> value_sums",
                                    "-> pooled",
                                    "sums of named rows",
                                    "cells",
                                    "cells without queries",
                                    "-> top_weights",
                                    "-> weights",
                                    "-> dropped_weights",
                                    "-> raw_scores",
                                    "-> capped_scores",
                                    "-> masked_scores",
                                    "numbers plain",
                                    "numbers flat",
                                    "numbers steep",
                                    "numbers scores 1e4",
                                    "numbers scores 1e30",
                                    "numbers denormal",
                                    "numbers ties",
                                    "numbers one key",
                                    "numbers v 1e30",
                                    "NaN in q",
                                    "NaN in k",
                                    "NaN in v",
                                    "infinity in q",
                                    "infinity in k",
                                    "infinity in v",
                                    "layout permuted",
                                    "layout sliced",
                                    "layout negative",
                                    "layout offset",
                                    "layout broadcast",
                                    "float32",
                                    "float64"};
// The same for a single score.
std::vector<const char*> covered_of(ScoreKind kind) {
  switch (kind) {
    case ScoreKind::kDot:
      return {"dot", "scaled_dot"};
    case ScoreKind::kCosine:
      return {"cosine"};
    case ScoreKind::kBilinear:
      return {"bilinear", "w per head", "odd parameter"};
    case ScoreKind::kAdditive:
      return {"additive",
              "U 1",
              "U 31",
              "U 32",
              "U 33",
              "U 65",
              "U 100",
              "wq per head",
              "wk per head",
              "score_v per head",
              "score_b per head",
              "score_b",
              "no score_b",
              "odd parameter",
              "numbers projected 20",
              "numbers projected 60",
              "numbers projected 300",
              "numbers projected 1e4",
              "numbers projected 1e6",
              "numbers cancelling"};
  }
  return {};
}

using Counts = std::map<std::string, int>;

void run(const RandomCall& call, std::string_view path, const Results& results) {
  Context context;
  context.force_path(path);
  attention(call.inputs(), call.options(), results.outputs(), context);
}

// Empty if one path agrees with the reference in one call.
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

// The findings of a run of calls.
struct Findings {
  std::map<std::string, Counts> counts;  // of features, by path
  Counts differences;                    // by path and result; the first of each is shown
};

void tell(Findings& findings, const std::string& path, const std::string& difference,
          const std::string& replay) {
  const std::string kind = path + ", " + difference.substr(0, difference.find(' '));
  if (++findings.differences[kind] == 1) ADD_FAILURE() << path << ": " << difference << replay;
}

// One call on the fast paths, and on the reference again.
void check_call(std::uint64_t seed, std::uint64_t index, const PathsOfScores& fast,
                bool reference_again, Findings& findings) {
  const RandomCall call(seed, index);
  const std::string replay =
      "\n  " + call.describe() + "\n  replay: QKV_CONFORMANCE=" + std::to_string(seed) + ":" +
      std::to_string(index) + " test_attention --gtest_filter='*Conformance*0'";
  const std::string reference(kReferencePath);
  const Results want(call, 555);
  try {
    run(call, reference, want);
  } catch (const std::exception& error) {
    return tell(findings, reference, error.what(), replay);
  }
  std::vector<std::string> paths = fast.at(call.score());
  if (reference_again) paths.push_back(reference);
  for (const std::string& path : paths) {
    if (path != reference && refusal(path, call.inputs(), call.options()).has_value()) continue;
    for (const std::string& feature : call.features()) ++findings.counts[path][feature];
    const std::string difference = conform(call, path, want);
    if (!difference.empty()) tell(findings, path, difference, replay);
  }
}

class Conformance : public testing::TestWithParam<int> {};

TEST_P(Conformance, EveryPathAgreesWithTheReference) {
  Findings findings;
  const PathsOfScores fast = paths_of_scores([](ScoreKind kind) { return fast_paths(kind); });
  std::uint64_t seed = kSeed;
  if (const char* only = std::getenv("QKV_CONFORMANCE")) {
    char* end = nullptr;
    seed = std::strtoull(only, &end, 10);
    if (*end == ':') {
      check_call(seed, std::strtoull(end + 1, nullptr, 10), fast, true, findings);
      return;
    }
    ASSERT_EQ(*end, '\0') << "QKV_CONFORMANCE is SEED:INDEX or SEED";
  }
  // Comparing the reference with itself now and then tests the comparison's NaN, zeros and
  // sentinels.
  for (int n = 0; n < calls_per_part(); ++n) {
    const auto index = static_cast<std::uint64_t>(n * kParts + GetParam());
    check_call(seed, index, fast, n % 8 == 0, findings);
  }
  for (const auto& [kind, count] : findings.differences) {
    std::printf("%s: %d calls differ\n", kind.c_str(), count);
  }
  for (const auto& [kind, paths] : fast) {
    std::vector<const char*> features(std::begin(kCovered), std::end(kCovered));
    for (const char* feature : covered_of(kind)) features.push_back(feature);
    for (const std::string& path : paths) {
      Counts& counts = findings.counts[path];
      std::printf("%s: %d float32 and %d float64 calls\n", path.c_str(), counts["float32"],
                  counts["float64"]);
      if (is_brief()) continue;  // too few calls to have met everything
      EXPECT_GT(counts["-> out"], 0) << path;
      for (const char* feature : features) {
        EXPECT_GE(counts[feature], least_of_each()) << path << " hardly met: " << feature;
      }
    }
  }
}

// Products of bfloat16 in pairs, against the reference that has them.
TEST(PairConformance, AgreesWithTheReferenceOfPairs) {
  const std::vector<std::string> paths = fast_paths(ScoreKind::kDot, DType::kBFloat16);
  if (paths.empty() || !is_of_pairs(paths.front())) GTEST_SKIP() << "this CPU has no avx512bf16";
  const std::string& path = paths.front();
  std::uint64_t first = 0;
  auto end = static_cast<std::uint64_t>(at_scale(400, 24));
  if (const char* only = std::getenv("QKV_CONFORMANCE")) {
    first = std::strtoull(only, nullptr, 10);
    end = first + 1;
  }
  Findings findings;
  for (std::uint64_t index = first; index < end; ++index) {
    const RandomCall call(kSeed, index, RandomCall::Draw::kPairs);
    const std::string replay = "\n  " + call.describe() +
                               "\n  replay: QKV_CONFORMANCE=" + std::to_string(index) +
                               " test_attention --gtest_filter='PairConformance*'";
    const Results want(call, 555);
    try {
      run(call, kPairedReferencePath, want);
    } catch (const std::exception& error) {
      tell(findings, std::string(kPairedReferencePath), error.what(), replay);
      continue;
    }
    for (const std::string& feature : call.features()) ++findings.counts[path][feature];
    const std::string difference = conform(call, path, want);
    if (!difference.empty()) tell(findings, path, difference, replay);
  }
  if (is_brief() || end == first + 1) return;
  for (const char* feature : kCovered) {
    const std::string_view name = feature;  // other types, and numbers that are not drawn for this
    if (name.starts_with("float") || name.ends_with(" 1e30")) continue;
    EXPECT_GE(findings.counts[path][feature], least_of_each()) << "hardly met: " << feature;
  }
}

INSTANTIATE_TEST_SUITE_P(Part, Conformance, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
