// SPDX-License-Identifier: Apache-2.0
#include "attention/dot_path.h"

#include "attention/dot_backward.h"
#include "attention/dot_forward.h"
#include "attention/target.h"

namespace qkv::door {
namespace {

using core::ScratchSize;
using kernels::Target;

template <Target kTarget>
const char* unsupported(const Problem& p) {
  if (p.score == core::ScoreKind::kBilinear) return "the bilinear score";
  if (p.score == core::ScoreKind::kAdditive) return "the additive score";
  if (p.accumulator != DType::kFloat32 && p.accumulator != DType::kFloat64) {
    return "complex numbers";
  }
  if (!kernels::is_supported(kTarget)) return "this CPU";
  if (!target_is_allowed(kernels::name_of(kTarget))) return "the target that QKV_TARGET names";
  return nullptr;
}

template <class Pass>
ScratchSize measure(Pass pass) {
  core::MeasuringArena arena;
  pass.take_shared(arena);
  return {arena.bytes(), pass.worker_bytes()};
}

template <Target kTarget>
ScratchSize forward_scratch(const Problem& p, const Results& to) {
  return p.accumulator == DType::kFloat64 ? measure(DotForward<double>(p, to, kTarget))
                                          : measure(DotForward<float>(p, to, kTarget));
}

template <Target kTarget>
void forward(const Problem& p, const Results& to, runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    DotForward<double>(p, to, kTarget).run(call);
  } else {
    DotForward<float>(p, to, kTarget).run(call);
  }
}

template <Target kTarget>
ScratchSize backward_scratch(const Problem& p, const GradientSources& from,
                             const GradientResults& to) {
  return p.accumulator == DType::kFloat64 ? measure(DotBackward<double>(p, from, to, kTarget))
                                          : measure(DotBackward<float>(p, from, to, kTarget));
}

template <Target kTarget>
void backward(const Problem& p, const GradientSources& from, const GradientResults& to,
              runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    DotBackward<double>(p, from, to, kTarget).run(call);
  } else {
    DotBackward<float>(p, from, to, kTarget).run(call);
  }
}

template <Target kTarget>
constexpr Implementation implementation(std::string_view name) {
  return {name,
          &unsupported<kTarget>,
          &forward_scratch<kTarget>,
          &forward<kTarget>,
          &backward_scratch<kTarget>,
          &backward<kTarget>};
}

}  // namespace

constinit const Implementation kDotAvx512 = implementation<Target::kAvx512>("dot/avx512");
constinit const Implementation kDotAvx2 = implementation<Target::kAvx2>("dot/avx2");
constinit const Implementation kDotSse4 = implementation<Target::kSse4>("dot/sse4");

}  // namespace qkv::door
