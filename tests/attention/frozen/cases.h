// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_FROZEN_CASES_H_
#define QKV_TESTS_ATTENTION_FROZEN_CASES_H_

#include <set>
#include <string>

#include <qkv/context.h>

#include "tests/attention/frozen/hash.h"

// The 200 calls whose results are kept as hashes in result_hashes.tsv. What they draw is frozen: a
// new option gets new cases behind these, so that no line of the file changes for its sake.
namespace qkv::test::frozen {

inline constexpr int kAttentionCases = 172;
inline constexpr int kMemoryCases = 8;
inline constexpr int kArrayCases = 10;
inline constexpr int kLayerCases = 10;
inline constexpr int kCases = kAttentionCases + kMemoryCases + kArrayCases + kLayerCases;

// What one case is and gave.
struct Outcome {
  std::string name{};                // says what is drawn; begins with the case's number
  DType sums = DType::kFloat32;      // what is summed in
  bool uses_libm = false;            // there is an lse, or what is made of it
  std::set<std::string> features{};  // what is drawn, one by one
  Hash hash{};
};

// Runs a case on the kernels of a target ("avx2"); with "", says what it is and runs nothing.
Outcome run_case(int number, const std::string& target, int threads);

// The kinds of cases, each counted from 0.
Outcome run_attention(int index, const std::string& target, int threads);
Outcome run_memory(int index, const std::string& target, int threads);
Outcome run_arrays(int index, const std::string& target, int threads);
Outcome run_layer(int index, const std::string& target, int threads);

// The context of a case.
inline Context context_of(const std::string& path, int threads) {
  Context context(Executor::threads(threads));
  context.force_path(path);
  return context;
}

}  // namespace qkv::test::frozen

#endif  // QKV_TESTS_ATTENTION_FROZEN_CASES_H_
