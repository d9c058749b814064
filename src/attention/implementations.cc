// SPDX-License-Identifier: Apache-2.0
#include "attention/implementations.h"

#include "attention/dot_path.h"
#include "attention/projected_path.h"
#include "attention/reference_path.h"
#include "attention/target.h"
#include "core/message.h"

namespace qkv::door {
namespace {

// In the order in which they are asked.
constexpr const Implementation* kImplementations[] = {
    &kDotAvx512,    &kDotAvx2,        &kDotSse4,      &kBilinearAvx512, &kBilinearAvx2,
    &kBilinearSse4, &kAdditiveAvx512, &kAdditiveAvx2, &kAdditiveSse4,   &kReference,
};

// Null, or why not.
const char* unsupported(const Implementation& x, const core::Problem& p, Pass pass) {
  if (pass == Pass::kBackward && x.backward == nullptr) return "the backward pass";
  return x.unsupported(p);
}

const Implementation& choose_forced(const core::Problem& p, std::string_view forced, Pass pass) {
  std::string names;
  for (const Implementation* candidate : kImplementations) {
    names += (names.empty() ? "" : ", ") + std::string(candidate->name);
    if (candidate->name != forced) continue;
    const char* reason = unsupported(*candidate, p, pass);
    if (reason == nullptr) return *candidate;
    throw Error(p.function, "context",
                core::text("forces the path \"", forced, "\", which does not support ", reason));
  }
  throw Error(p.function, "context",
              core::text("forces the path \"", forced, "\"; valid: ", names));
}

}  // namespace

std::span<const Implementation* const> implementations() { return kImplementations; }

const Implementation& choose(const core::Problem& p, std::string_view forced, Pass pass) {
  target_in_use(p.function);
  if (!forced.empty()) return choose_forced(p, forced, pass);
  for (const Implementation* candidate : kImplementations) {
    if (unsupported(*candidate, p, pass) == nullptr) return *candidate;
  }
  return kReference;
}

}  // namespace qkv::door
