// SPDX-License-Identifier: Apache-2.0
#include "attention/implementations.h"

#include "attention/reference_path.h"
#include "core/message.h"

namespace qkv::door {
namespace {

// In the order in which they are asked.
constexpr const Implementation* kImplementations[] = {
    &kReference,
};

const Implementation& choose_forced(const core::Problem& p, std::string_view forced) {
  std::string names;
  for (const Implementation* candidate : kImplementations) {
    names += (names.empty() ? "" : ", ") + std::string(candidate->name);
    if (candidate->name != forced) continue;
    const char* reason = candidate->unsupported(p);
    if (reason == nullptr) return *candidate;
    throw Error(p.function, "context",
                core::text("forces the path \"", forced, "\", which does not support ", reason));
  }
  throw Error(p.function, "context",
              core::text("forces the path \"", forced, "\" but the paths are: ", names));
}

}  // namespace

std::span<const Implementation* const> implementations() { return kImplementations; }

const Implementation& choose(const core::Problem& p, std::string_view forced) {
  if (!forced.empty()) return choose_forced(p, forced);
  for (const Implementation* candidate : kImplementations) {
    if (candidate->unsupported(p) == nullptr) return *candidate;
  }
  return kReference;
}

}  // namespace qkv::door
