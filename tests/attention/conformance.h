// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_CONFORMANCE_H_
#define QKV_TESTS_ATTENTION_CONFORMANCE_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/attention/scores.h"
#include "tests/support/scale.h"

// Runs random calls, counts their features, and collects differences between paths. The features in
// the lists below must occur; their names are parts of hashes (result_hashes_test.cc).
namespace qkv::test {

// Features that calls of every path must have, forward and backward, separated by ", ".
inline constexpr std::string_view kCoveredOfCalls =
    "scale, softcap, mods, mods -inf, bias, bias -inf, top left, bottom right, offset, offsets, "
    "alibi, causal, window, keep, padding, lengths, lengths per query, mask_mod, sinks, odd sink, "
    "dropout, packed, empty sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, "
    "no v, numbers plain, numbers flat, numbers steep, numbers scores 1e4, numbers scores 1e30, "
    "numbers denormal, numbers ties, numbers one key, numbers v 1e30, NaN in q, NaN in k, NaN in "
    "v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, layout "
    "negative, layout offset, layout broadcast, float32, float64";

// Features of requested results ("-> NAME"), and of the rows that they list ("named rows").
inline constexpr std::string_view kCoveredOutputs =
    "named rows, all rows, top, top more than keys, -> out, -> lse, -> row_max, -> entropy, "
    "-> column_sums, -> value_sums, -> pooled, sums of named rows, cells, cells without queries, "
    "-> top_weights, -> weights, -> dropped_weights, -> raw_scores, -> capped_scores, "
    "-> masked_scores";

// Features of given gradients, and of requested ones ("asks NAME"; "added": accumulated). "repeated
// names" are rows that dweights lists twice.
inline constexpr std::string_view kCoveredGradients =
    "dout, dlse, dweights of all rows, dweights of named rows, repeated names, asks q, asks k, "
    "asks v, asks bias, asks alibi, asks sinks, asks one, dbias [Tq,Tk], dbias [1,Tk], dbias "
    "[Tq,1], dbias [1,1], dbias per head, added, threads 1, threads 2, threads 3, NaN in dout, "
    "infinity in dout";

// Input transforms of the rows of q and k (row maps), and their gradients.
inline constexpr std::string_view kCoveredMaps =
    "norm, norm_q, norm_q per head, norm_k, norm_k per head, asks norm_q, asks norm_k, halves, "
    "neighbours, frequencies, positions, positions by entry";

// Calls f(name) for each name in a list of features.
template <class F>
void for_each_feature(std::string_view features, const F& f) {
  for (std::size_t from = 0; from < features.size();) {
    const std::string_view name = features.substr(from, features.find(", ", from) - from);
    f(std::string(name));
    from += name.size() + 2;
  }
}

// Features that calls with a score of this kind must have.
inline std::string_view covered_of(ScoreKind kind) {
  switch (kind) {
    case ScoreKind::kDot:
      return "dot, scaled_dot";
    case ScoreKind::kCosine:
      return "cosine";
    case ScoreKind::kBilinear:
      return "bilinear, w per head, odd parameter";
    case ScoreKind::kAdditive:
      break;
  }
  return "additive, U 1, U 31, U 32, U 33, U 65, U 100, wq per head, wk per head, score_v per "
         "head, score_b per head, score_b, no score_b, odd parameter, numbers projected 20, "
         "numbers projected 60, numbers projected 300, numbers projected 1e4, numbers projected "
         "1e6, numbers cancelling";
}

using Counts = std::map<std::string, int>;

struct Findings {
  std::map<std::string, Counts> counts;  // number of calls with each feature, by path
  Counts differences;                    // by path and result; the first of each is reported

  void count(const std::string& path, const std::set<std::string>& features) {
    for (const std::string& feature : features) ++counts[path][feature];
  }
  // Counts a difference. Reports it if its result, the first word, had none on this path before.
  void tell(std::string_view path, const std::string& difference, const std::string& replay) {
    const std::string kind = std::string(path) + ", " + difference.substr(0, difference.find(' '));
    if (++differences[kind] == 1) ADD_FAILURE() << path << ": " << difference << replay;
  }
  // Expects that a path has met each of these features at least `least` times; with `of_bfloat16`
  // only those that random calls of bfloat16 can have.
  void expect_met(const std::string& path, std::string_view features, int least, bool of_bfloat16) {
    for_each_feature(features, [&](const std::string& name) {
      if (of_bfloat16 && !occurs_in_bfloat16(name)) return;
      EXPECT_GE(counts[path][name], least) << path << " met too seldom: " << name;
    });
  }
  // Expects of a thorough run what expect_met() expects. A shorter run at a scale of 10 percent or
  // more, such as `make test`, must meet 3 in 5 of the features. (It met at least 13 in 20 of every
  // list when this was written.) At smaller scales nothing is expected.
  void expect_met_at_scale(const std::string& path, std::string_view features, int least,
                           bool of_bfloat16) {
    if (is_thorough()) return expect_met(path, features, least, of_bfloat16);
    if (test_scale() < 10) return;
    int all = 0;
    int met = 0;
    std::string missing;
    for_each_feature(features, [&](const std::string& name) {
      if (of_bfloat16 && !occurs_in_bfloat16(name)) return;
      ++all;
      if (counts[path][name] > 0) {
        ++met;
      } else {
        missing += ", " + name;
      }
    });
    EXPECT_GE(5 * met, 3 * all) << path << " did not meet" << missing;
  }

 private:
  // Random calls of bfloat16 have neither other dtypes nor numbers of 1e30.
  static bool occurs_in_bfloat16(const std::string& feature) {
    return !feature.starts_with("float") && !feature.ends_with(" 1e30");
  }
};

// Runs check(seed, index, again) for `calls` calls of one of the kParts parts, which ctest may run
// in parallel. QKV_CONFORMANCE=SEED replaces the seed; SEED:INDEX runs this call alone. If `again`
// is true, the reference is also one of the compared paths. Returns whether the calls should have
// met all features.
inline constexpr int kParts = 4;
template <class Check>
bool run_part(std::uint64_t seed, int part, int calls, Findings& findings, const Check& check) {
  if (const char* only = std::getenv("QKV_CONFORMANCE")) {
    char* end = nullptr;
    seed = std::strtoull(only, &end, 10);
    if (*end == ':') {
      check(seed, std::strtoull(end + 1, nullptr, 10), true);
      return false;
    }
    EXPECT_EQ(*end, '\0') << "QKV_CONFORMANCE is SEED:INDEX or SEED";
  }
  // For every eighth call the reference is also compared with itself: this tests the comparison of
  // NaN, zeros and sentinels.
  for (int n = 0; n < calls; ++n) {
    check(seed, static_cast<std::uint64_t>(n * kParts + part), n % 8 == 0);
  }
  for (const auto& [kind, count] : findings.differences) {
    std::printf("%s: %d calls differ\n", kind.c_str(), count);
  }
  return !is_brief();
}

// The lines of a failure that say how to repeat it in a test program.
inline std::string replay_of(const std::string& call, std::uint64_t seed, std::uint64_t index,
                             const char* filter, const char* program = "test_attention") {
  return "\n  " + call + "\n  replay: QKV_CONFORMANCE=" + std::to_string(seed) + ":" +
         std::to_string(index) + " " + program + " --gtest_filter='" + filter + "'";
}

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_CONFORMANCE_H_
