// SPDX-License-Identifier: Apache-2.0
#include "attention/dot_path.h"

#include "attention/fused_backward.h"
#include "attention/fused_forward.h"
#include "attention/fused_path.h"

namespace qkv::door {
namespace {

using kernels::Target;

template <Target kTarget>
const char* unsupported(const Problem& p) {
  if (p.score != core::ScoreKind::kDot) return name_of(p.score);
  return target_unsupported<kTarget>(p);
}

template <Target kTarget>
constexpr Implementation implementation(std::string_view name) {
  using P = FusedPath<FusedForward, FusedBackward, kTarget>;
  return {name,        &unsupported<kTarget>, &P::forward_scratch,
          &P::forward, &P::backward_scratch,  &P::backward};
}

}  // namespace

constinit const Implementation kDotAvx512 = implementation<Target::kAvx512>("dot/avx512");
constinit const Implementation kDotAvx2 = implementation<Target::kAvx2>("dot/avx2");
constinit const Implementation kDotSse4 = implementation<Target::kSse4>("dot/sse4");

}  // namespace qkv::door
