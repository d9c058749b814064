// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_PATHS_H_
#define QKV_TESTS_SUPPORT_PATHS_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/context.h>
#include <qkv/target.h>

namespace qkv::test {

inline constexpr std::string_view kReferencePath = "reference";

// Returns paths that a context may be forced to: one for each CPU target available here, the
// reference last. Targets that differ from avx512 only in products of BF16 are left out.
inline std::vector<std::string> paths() {
  std::vector<std::string> names;
  for (const std::string_view target : cpu_targets()) {
    if (target == "avx512bf16" || target.starts_with("amx")) continue;
    names.push_back(target == kReferencePath ? std::string(target) : "dot/" + std::string(target));
  }
  return names;
}

inline Context context_on(std::string_view path, int threads = 1) {
  Context context(Executor::threads(threads));
  context.force_path(path);
  return context;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_PATHS_H_
