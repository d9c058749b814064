// SPDX-License-Identifier: Apache-2.0
#include "dense/target_in_use.h"

#include <array>
#include <cstdlib>
#include <string>

#include <qkv/error.h>
#include <qkv/target.h>

#include "core/message.h"
#include "dense/paths.h"
#include "kernels/amx_kernels.h"
#include "kernels/dot2_kernels.h"
#include "kernels/dot_kernels.h"

namespace qkv {
namespace {

// The name of the plain loops, which use no kernels. It is not an instruction set.
constexpr std::string_view kReferenceTarget = "reference";

struct TargetList {
  std::array<std::string_view, kernels::kTargets.size() + 1> names;
  std::size_t count = 0;

  TargetList() {
    for (const kernels::Target target : kernels::supported_targets()) {
      names[count++] = kernels::name_of(target);
    }
    names[count++] = kReferenceTarget;
  }
  std::span<const std::string_view> all() const { return {names.data(), count}; }
};

std::string listed() {
  std::string text;
  for (const std::string_view name : cpu_targets()) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

// The value of QKV_TARGET when it was first needed; "" if it is not set.
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

std::optional<kernels::Target> dense::target_in_use(std::string_view function) {
  const std::string& asked = asked_for();
  if (asked.empty() && !kernels::supported_targets().empty()) {
    return kernels::supported_targets().front();
  }
  // Only the target that is asked for is tested: a test for AMX changes the process (see
  // kernels::amx_is_permitted()).
  for (const kernels::Target target : kernels::kTargets) {
    if (asked == kernels::name_of(target) && kernels::is_supported(target)) return target;
  }
  if (asked.empty() || asked == kReferenceTarget) return std::nullopt;
  throw Error(
      function, "QKV_TARGET",
      core::text("is \"", asked, "\" in the environment but this CPU's targets are: ", listed()));
}

const char* dense::unsupported(kernels::Target target) {
  const std::string& asked = asked_for();
  if (!asked.empty() && asked != kernels::name_of(target))
    return "the target that QKV_TARGET names";
  return kernels::is_supported(target) ? nullptr : "this CPU";
}

std::optional<kernels::Target> dense::target_of_call(const Context& context,
                                                     std::string_view function) {
  const std::optional<kernels::Target> in_use = target_in_use(function);
  const std::string_view forced = context.forced_path();
  if (forced.empty()) return in_use;
  for (const Path& path : kPaths) {
    if (path.name != forced) continue;
    const char* const reason = path.target ? unsupported(*path.target) : nullptr;
    if (reason != nullptr) fail_unsupported_path(function, forced, reason);
    return path.target;
  }
  fail_unknown_path(function, forced);
}

void dense::fail_unknown_path(std::string_view function, std::string_view forced) {
  // Lists paths with a target as "dot/ or additive/ with amx, ...": both have all targets.
  std::string products, targets, others;
  for (const Path& path : kPaths) {
    const std::size_t slash = path.name.find('/');
    if (!path.target) {
      others += "; " + std::string(path.name);
      continue;
    }
    const std::string product(path.name.substr(0, slash + 1));
    const std::string target(path.name.substr(slash + 1));
    if (products.find(product) == std::string::npos) {
      products += (products.empty() ? "" : " or ") + product;
    }
    if (product == "dot/") targets += (targets.empty() ? "" : ", ") + target;
  }
  throw Error(
      function, "context",
      core::text("forces the path \"", forced, "\"; valid: ", products, " with ", targets, others));
}

void dense::fail_unsupported_path(std::string_view function, std::string_view forced,
                                  std::string_view reason) {
  throw Error(function, "context",
              core::text("forces the path \"", forced, "\", which does not support ", reason));
}

std::string_view cpu_target() {
  const std::optional<kernels::Target> target = dense::target_in_use("cpu_target");
  return target ? kernels::name_of(*target) : kReferenceTarget;
}

double multiply_add_burst(std::string_view target, DType type, Index rounds) {
  constexpr std::string_view kFunction = "multiply_add_burst";
  const bool is_bfloat16 = type == DType::kBFloat16;
  if (type != DType::kFloat32 && type != DType::kFloat64 && !is_bfloat16) {
    throw Error(kFunction, "type",
                core::text("must be float32, float64 or bfloat16 but is ", name_of(type)),
                ErrorKind::kType);
  }
  if (rounds < 0) throw Error(kFunction, "rounds", core::text("must be >= 0 but is ", rounds));
  for (const kernels::Target candidate : kernels::kTargets) {
    if (kernels::name_of(candidate) != target || !kernels::is_supported(candidate)) continue;
    if (is_bfloat16 && candidate == kernels::Target::kAvx512Bf16) {
      return kernels::dot2_kernels().multiply_adds(rounds);
    }
    if (is_bfloat16 && kernels::has_amx_products(candidate)) {
      return kernels::amx_kernels(candidate).multiply_adds(rounds);
    }
    if (is_bfloat16) {
      throw Error(kFunction, "type",
                  core::text("is bfloat16, for which the target \"", target, "\" has no products"),
                  ErrorKind::kType);
    }
    return type == DType::kFloat32 ? kernels::dot_kernels<float>(candidate).multiply_adds(rounds)
                                   : kernels::dot_kernels<double>(candidate).multiply_adds(rounds);
  }
  throw Error(kFunction, "target",
              core::text("\"", target, "\" has no kernels here; the targets are: ", listed()));
}

}  // namespace qkv
