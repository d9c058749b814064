// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_FROZEN_CASES_H_
#define QKV_TESTS_ATTENTION_FROZEN_CASES_H_

#include <set>
#include <string>

#include <qkv/context.h>

#include "tests/attention/frozen/hash.h"

// The calls whose results are kept as hashes in result_hashes.tsv. Their draws are frozen: a new
// option gets new cases at the end, so that no existing line of the file changes.
namespace qkv::test::frozen {

inline constexpr int kAttentionCases = 172;
inline constexpr int kMemoryCases = 8;
inline constexpr int kArrayCases = 10;
inline constexpr int kLayerCases = 10;
inline constexpr int kMapCases = 36;
inline constexpr int kDecodeCases = 40;
inline constexpr int kCases =
    kAttentionCases + kMemoryCases + kArrayCases + kLayerCases + kMapCases + kDecodeCases;

// A case's description and results.
struct Outcome {
  std::string name{};                // the draws; begins with the case's number
  std::set<std::string> features{};  // the individual draws
  Hash hash{};
};

// Runs a case on the kernels of a target ("avx2"); with "", only describes it.
Outcome run_case(int number, const std::string& target, int threads);

// The kinds of cases, each counted from 0.
Outcome run_attention(int index, const std::string& target, int threads);
Outcome run_memory(int index, const std::string& target, int threads);
Outcome run_arrays(int index, const std::string& target, int threads);
Outcome run_layer(int index, const std::string& target, int threads);
Outcome run_maps(int index, const std::string& target, int threads);
Outcome run_decode(int index, const std::string& target, int threads);

// The context of a case.
inline Context context_of(const std::string& path, int threads) {
  Context context(Executor::threads(threads));
  context.force_path(path);
  return context;
}

}  // namespace qkv::test::frozen

#endif  // QKV_TESTS_ATTENTION_FROZEN_CASES_H_
