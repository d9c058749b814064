// SPDX-License-Identifier: Apache-2.0
#include "attention/dot_path.h"

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

template <Target kTarget, class T>
DotForward<T> pass(const Problem& p, const Results& to) {
  return DotForward<T>(p, to, kTarget);
}

template <Target kTarget>
ScratchSize scratch(const Problem& p, const Results& to) {
  const auto measure = [](auto forward) -> ScratchSize {
    core::MeasuringArena arena;
    forward.take_shared(arena);
    return {arena.bytes(), forward.worker_bytes()};
  };
  return p.accumulator == DType::kFloat64 ? measure(pass<kTarget, double>(p, to))
                                          : measure(pass<kTarget, float>(p, to));
}

template <Target kTarget>
void forward(const Problem& p, const Results& to, runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    pass<kTarget, double>(p, to).run(call);
  } else {
    pass<kTarget, float>(p, to).run(call);
  }
}

template <Target kTarget>
constexpr Implementation implementation(std::string_view name) {
  return {name, &unsupported<kTarget>, &scratch<kTarget>, &forward<kTarget>, nullptr, nullptr};
}

}  // namespace

constinit const Implementation kDotAvx512 = implementation<Target::kAvx512>("dot/avx512");
constinit const Implementation kDotAvx2 = implementation<Target::kAvx2>("dot/avx2");
constinit const Implementation kDotSse4 = implementation<Target::kSse4>("dot/sse4");

}  // namespace qkv::door
