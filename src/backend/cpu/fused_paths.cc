// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/fused_paths.h"

#include "attention/fused/backward.h"
#include "attention/fused/forward.h"
#include "attention/rowmaps/mapped_backward.h"
#include "attention/rowmaps/mapped_forward.h"
#include "backend/cpu/reference_path.h"

namespace qkv::attn {
namespace {

using core::GradientResults;
using core::GradientSources;
using core::PairProduct;
using core::Problem;
using core::Results;
using core::ScratchSize;
using kernels::Target;

constexpr PairProduct kDot[] = {PairProduct::kDot};
constexpr PairProduct kTanh[] = {PairProduct::kTanh};

// f(null pointer of the type of sums)
template <class F>
auto with_sums(const Problem& p, const F& f) {
  return p.accumulator == DType::kFloat64 ? f(static_cast<double*>(nullptr))
                                          : f(static_cast<float*>(nullptr));
}

// Who runs a call: where there are no pairs, no map need look at any row, but B may be any number,
// as the reference takes it.
enum class Runs { kPlain, kMapped, kReference };
Runs who_runs(const Problem& p) {
  if (p.product == PairProduct::kDot && p.query_maps.is_identity() && p.key_maps.is_identity()) {
    return Runs::kPlain;
  }
  return has_pairs(p) ? Runs::kMapped : Runs::kReference;
}

ScratchSize forward_scratch(const Implementation& by, const Problem& p, const Results& to) {
  switch (who_runs(p)) {
    case Runs::kPlain:
      return with_sums(
          p, [&]<class T>(T*) { return core::measure(FusedForward<T>(p, to, *by.target)); });
    case Runs::kMapped:
      return with_sums(
          p, [&]<class T>(T*) { return core::measure(MappedForward<T>(p, to, *by.target)); });
    case Runs::kReference:
      break;
  }
  return kReference.forward_scratch(p, to);
}

void forward(const Implementation& by, const Problem& p, const Results& to, runtime::Call& call) {
  switch (who_runs(p)) {
    case Runs::kPlain:
      return with_sums(p, [&]<class T>(T*) { FusedForward<T>(p, to, *by.target).run(call); });
    case Runs::kMapped:
      return with_sums(p, [&]<class T>(T*) { MappedForward<T>(p, to, *by.target).run(call); });
    case Runs::kReference:
      break;
  }
  kReference.forward(p, to, call);
}

ScratchSize backward_scratch(const Implementation& by, const Problem& p,
                             const GradientSources& from, const GradientResults& to) {
  switch (who_runs(p)) {
    case Runs::kPlain:
      return with_sums(
          p, [&]<class T>(T*) { return core::measure(FusedBackward<T>(p, from, to, *by.target)); });
    case Runs::kMapped:
      return with_sums(p, [&]<class T>(T*) {
        return core::measure(MappedBackward<T>(p, from, to, *by.target));
      });
    case Runs::kReference:
      break;
  }
  return kReference.backward_scratch(p, from, to);
}

void backward(const Implementation& by, const Problem& p, const GradientSources& from,
              const GradientResults& to, runtime::Call& call) {
  switch (who_runs(p)) {
    case Runs::kPlain:
      return with_sums(p,
                       [&]<class T>(T*) { FusedBackward<T>(p, from, to, *by.target).run(call); });
    case Runs::kMapped:
      return with_sums(p,
                       [&]<class T>(T*) { MappedBackward<T>(p, from, to, *by.target).run(call); });
    case Runs::kReference:
      break;
  }
  kReference.backward(p, from, to, call);
}

constexpr Implementation fused(std::string_view name, Target target,
                               std::span<const PairProduct> products) {
  return {name,      target,      products,
          kRealSums, kBothPasses, {&forward_scratch, &forward, &backward_scratch, &backward}};
}

}  // namespace

constinit const Implementation kDotAvx512 = fused("dot/avx512", Target::kAvx512, kDot);
constinit const Implementation kDotAvx2 = fused("dot/avx2", Target::kAvx2, kDot);
constinit const Implementation kDotSse4 = fused("dot/sse4", Target::kSse4, kDot);
constinit const Implementation kAdditiveAvx512 = fused("additive/avx512", Target::kAvx512, kTanh);
constinit const Implementation kAdditiveAvx2 = fused("additive/avx2", Target::kAvx2, kTanh);
constinit const Implementation kAdditiveSse4 = fused("additive/sse4", Target::kSse4, kTanh);

bool has_pairs(const Problem& p) noexcept {
  return p.B != 0 && p.H != 0 && p.q_rows != 0 && p.k_rows != 0;
}

}  // namespace qkv::attn
