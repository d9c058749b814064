// SPDX-License-Identifier: Apache-2.0
#include "attention/projected_path.h"

#include "attention/fused_path.h"
#include "attention/projected_backward.h"
#include "attention/projected_forward.h"
#include "attention/reference_path.h"

namespace qkv::door {
namespace {

using core::ScoreKind;
using kernels::Target;

template <ScoreKind kScore, Target kTarget>
const char* unsupported(const Problem& p) {
  return p.score == kScore ? target_unsupported<kTarget>(p) : name_of(p.score);
}

// Where there are no pairs there is nothing to project, but B may be any number: as the reference
// does it.
template <Target kTarget>
struct Path {
  using Fused = FusedPath<ProjectedForward, ProjectedBackward, kTarget>;

  static core::ScratchSize forward_scratch(const Problem& p, const core::Results& to) {
    return has_pairs(p) ? Fused::forward_scratch(p, to) : kReference.forward_scratch(p, to);
  }
  static void forward(const Problem& p, const core::Results& to, runtime::Call& call) {
    has_pairs(p) ? Fused::forward(p, to, call) : kReference.forward(p, to, call);
  }
  static core::ScratchSize backward_scratch(const Problem& p, const core::GradientSources& from,
                                            const core::GradientResults& to) {
    return has_pairs(p) ? Fused::backward_scratch(p, from, to)
                        : kReference.backward_scratch(p, from, to);
  }
  static void backward(const Problem& p, const core::GradientSources& from,
                       const core::GradientResults& to, runtime::Call& call) {
    has_pairs(p) ? Fused::backward(p, from, to, call) : kReference.backward(p, from, to, call);
  }
};

template <ScoreKind kScore, Target kTarget>
constexpr Implementation implementation(std::string_view name) {
  using P = Path<kTarget>;
  return {name,        &unsupported<kScore, kTarget>, &P::forward_scratch,
          &P::forward, &P::backward_scratch,          &P::backward};
}

template <Target kTarget>
constexpr Implementation additive(std::string_view name) {
  return implementation<ScoreKind::kAdditive, kTarget>(name);
}
template <Target kTarget>
constexpr Implementation bilinear(std::string_view name) {
  return implementation<ScoreKind::kBilinear, kTarget>(name);
}

}  // namespace

constinit const Implementation kAdditiveAvx512 = additive<Target::kAvx512>("additive/avx512");
constinit const Implementation kAdditiveAvx2 = additive<Target::kAvx2>("additive/avx2");
constinit const Implementation kAdditiveSse4 = additive<Target::kSse4>("additive/sse4");
constinit const Implementation kBilinearAvx512 = bilinear<Target::kAvx512>("bilinear/avx512");
constinit const Implementation kBilinearAvx2 = bilinear<Target::kAvx2>("bilinear/avx2");
constinit const Implementation kBilinearSse4 = bilinear<Target::kSse4>("bilinear/sse4");

bool has_pairs(const core::Problem& p) noexcept {
  return p.B != 0 && p.H != 0 && p.q_rows != 0 && p.k_rows != 0;
}

std::optional<Target> target_of(const Implementation& one) noexcept {
  if (&one == &kAdditiveAvx512) return Target::kAvx512;
  if (&one == &kAdditiveAvx2) return Target::kAvx2;
  if (&one == &kAdditiveSse4) return Target::kSse4;
  return std::nullopt;
}

}  // namespace qkv::door
