// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_PATHS_H_
#define QKV_TESTS_ATTENTION_PATHS_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/attention.h>

#include "attention/implementations.h"
#include "tests/attention/bits.h"
#include "tests/attention/scores.h"
#include "tests/support/paths.h"
#include "tests/support/scale.h"

// The paths, for tests to iterate over.
namespace qkv::test {

// The reason why a path does not support this call, or nullopt if it does.
inline std::optional<std::string> refusal(std::string_view path, const Inputs& inputs,
                                          const Options& options) {
  Context context = context_on(path);
  try {
    const Plan plan(inputs, options, context);
    if (plan.path() == path) return std::nullopt;
    return "the path " + std::string(plan.path()) + " was taken";
  } catch (const Error& error) {
    return error.what();
  }
}

// The references with the BF16 products of avx512bf16 and of amx.
inline constexpr std::string_view kDot2ReferencePath = "reference/bf16";
inline constexpr std::string_view kAmxReferencePath = "reference/amx";

// Whether a path, not counting the references, has products of BF16. Its target is otherwise equal
// to avx512 (BFloat16Kernels.OthersAreThoseOfAvx512).
inline bool has_bfloat16_products(std::string_view path) {
  if (path.starts_with("reference")) return false;
  return path.ends_with("/avx512bf16") || path.ends_with("/amx") || path.ends_with("/amx-emulated");
}
inline bool is_bfloat16_reference(std::string_view path) {
  return path == kDot2ReferencePath || path == kAmxReferencePath;
}

// The reference that has the products of the path.
inline std::string_view reference_of(std::string_view path) {
  if (!has_bfloat16_products(path)) return kReferencePath;
  return path.ends_with("/avx512bf16") ? kDot2ReferencePath : kAmxReferencePath;
}

// The paths other than the reference that this CPU can run and that support a plain call with a
// score of this kind. Paths with products of BF16 are among them only if dtype is bfloat16.
inline std::vector<std::string> fast_paths(ScoreKind kind = ScoreKind::kDot,
                                           DType dtype = DType::kFloat32) {
  const Tensor x = normal({4, 8}, 1);
  const SeededScore score(kind, {.H = 1, .Dq = 8, .Dk = 8, .U = 4}, x.dtype());
  std::vector<std::string> names;
  for (const attn::Implementation* one : attn::implementations()) {
    if (!one->target) continue;
    if (has_bfloat16_products(one->name) && dtype != DType::kBFloat16) continue;
    const Options options{.score = score.score()};
    if (!refusal(one->name, {x, x, x}, options).has_value()) names.emplace_back(one->name);
  }
  return names;
}

// The fast paths with products of BF16.
inline std::vector<std::string> bfloat16_paths() {
  std::vector<std::string> names = fast_paths(ScoreKind::kDot, DType::kBFloat16);
  std::erase_if(names, [](const std::string& path) { return !has_bfloat16_products(path); });
  return names;
}

// The paths of fast_paths(), and the reference.
inline std::vector<std::string> all_paths(ScoreKind kind = ScoreKind::kDot,
                                          DType dtype = DType::kFloat32) {
  std::vector<std::string> names = fast_paths(kind, dtype);
  names.emplace_back(kReferencePath);
  return names;
}

// The paths that support each kind of score, such as fast_paths(kind).
using PathsOfScores = std::map<ScoreKind, std::vector<std::string>>;

template <class F>
PathsOfScores paths_of_scores(const F& paths_of) {
  PathsOfScores paths;
  for (const ScoreKind kind : kScoreKinds) paths[kind] = paths_of(kind);
  return paths;
}

// Whether a path rounds products and projections like the reference, with fused multiply-adds. SSE4
// does not have them.
inline bool fuses(std::string_view path) { return !path.ends_with("sse4"); }

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_PATHS_H_
