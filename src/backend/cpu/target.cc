// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/target.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include <qkv/error.h>
#include <qkv/target.h>

#include "core/message.h"
#include "kernels/dot_kernels.h"
#include "kernels/pair_kernels.h"

namespace qkv {
namespace {

struct TargetList {
  std::array<std::string_view, kernels::kTargets.size() + 1> names;
  std::size_t count = 0;

  TargetList() {
    for (const kernels::Target target : kernels::kTargets) {
      if (kernels::is_supported(target)) names[count++] = kernels::name_of(target);
    }
    names[count++] = attn::kReferenceTarget;
  }
  std::span<const std::string_view> all() const { return {names.data(), count}; }
};

bool is_listed(std::string_view name) {
  const auto all = cpu_targets();
  return std::find(all.begin(), all.end(), name) != all.end();
}

std::string listed() {
  std::string text;
  for (const std::string_view name : cpu_targets()) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

// QKV_TARGET, as it was when first needed; "" when it is not set.
const std::string& asked_for() {
  static const std::string asked = [] {
    const char* const value = std::getenv("QKV_TARGET");  // NOLINT(concurrency-mt-unsafe)
    return std::string(value == nullptr ? "" : value);
  }();
  return asked;
}

}  // namespace

std::span<const std::string_view> cpu_targets() {
  static const TargetList list;
  return list.all();
}

std::string_view attn::target_in_use(std::string_view function) {
  const std::string& asked = asked_for();
  if (asked.empty()) return cpu_targets().front();
  if (is_listed(asked)) return asked;
  throw Error(
      function, "QKV_TARGET",
      core::text("is \"", asked, "\" in the environment but this CPU's targets are: ", listed()));
}

bool attn::target_is_allowed(std::string_view name) {
  return asked_for().empty() || asked_for() == name;
}

std::string_view cpu_target() { return attn::target_in_use("cpu_target"); }

double multiply_add_burst(std::string_view target, DType type, Index rounds) {
  constexpr std::string_view kFunction = "multiply_add_burst";
  const bool in_pairs = type == DType::kBFloat16;
  if (type != DType::kFloat32 && type != DType::kFloat64 && !in_pairs) {
    throw Error(kFunction, "type",
                core::text("must be float32, float64 or bfloat16 but is ", name_of(type)),
                ErrorKind::kType);
  }
  if (rounds < 0) throw Error(kFunction, "rounds", core::text("must be >= 0 but is ", rounds));
  for (const kernels::Target candidate : kernels::kTargets) {
    if (kernels::name_of(candidate) != target || !kernels::is_supported(candidate)) continue;
    if (in_pairs && candidate == kernels::Target::kAvx512Bf16) {
      return kernels::bfloat16_pair_kernels().multiply_adds(rounds);
    }
    if (in_pairs) {
      throw Error(kFunction, "type",
                  core::text("is bfloat16, of which \"", target, "\" has no products"),
                  ErrorKind::kType);
    }
    return type == DType::kFloat32 ? kernels::dot_kernels<float>(candidate).multiply_adds(rounds)
                                   : kernels::dot_kernels<double>(candidate).multiply_adds(rounds);
  }
  throw Error(kFunction, "target",
              core::text("\"", target, "\" has no kernels here; the targets are: ", listed()));
}

}  // namespace qkv
