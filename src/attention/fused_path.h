// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_PATH_H_
#define QKV_ATTENTION_FUSED_PATH_H_

#include "attention/implementations.h"
#include "attention/target.h"
#include "core/arena.h"
#include "kernels/target.h"

// An implementation for one CPU target from a forward and a backward pass, each a template of the
// type of sums with take_shared(arena), worker_bytes() and run(call).
namespace qkv::door {

// What messages call a score that an implementation does not take.
constexpr const char* name_of(core::ScoreKind score) {
  switch (score) {
    case core::ScoreKind::kDot:
      return "dot-product scores";
    case core::ScoreKind::kBilinear:
      return "the bilinear score";
    case core::ScoreKind::kAdditive:
      return "the additive score";
  }
  return "this score";
}

// Why a problem is not this target's, or null.
template <kernels::Target kTarget>
const char* target_unsupported(const core::Problem& p) {
  if (p.accumulator != DType::kFloat32 && p.accumulator != DType::kFloat64) {
    return "complex numbers";
  }
  if (!kernels::is_supported(kTarget)) return "this CPU";
  if (!target_is_allowed(kernels::name_of(kTarget))) return "the target that QKV_TARGET names";
  return nullptr;
}

template <template <class> class Forward, template <class> class Backward, kernels::Target kTarget>
struct FusedPath {
  // f(null pointer of the type of sums)
  template <class F>
  static auto with_type(const core::Problem& p, const F& f) {
    return p.accumulator == DType::kFloat64 ? f(static_cast<double*>(nullptr))
                                            : f(static_cast<float*>(nullptr));
  }
  static core::ScratchSize forward_scratch(const core::Problem& p, const core::Results& to) {
    return with_type(p, [&]<class T>(T*) { return core::measure(Forward<T>(p, to, kTarget)); });
  }
  static void forward(const core::Problem& p, const core::Results& to, runtime::Call& call) {
    with_type(p, [&]<class T>(T*) { Forward<T>(p, to, kTarget).run(call); });
  }
  static core::ScratchSize backward_scratch(const core::Problem& p,
                                            const core::GradientSources& from,
                                            const core::GradientResults& to) {
    return with_type(p,
                     [&]<class T>(T*) { return core::measure(Backward<T>(p, from, to, kTarget)); });
  }
  static void backward(const core::Problem& p, const core::GradientSources& from,
                       const core::GradientResults& to, runtime::Call& call) {
    with_type(p, [&]<class T>(T*) { Backward<T>(p, from, to, kTarget).run(call); });
  }
};

}  // namespace qkv::door

#endif  // QKV_ATTENTION_FUSED_PATH_H_
