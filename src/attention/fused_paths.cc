// SPDX-License-Identifier: Apache-2.0
#include "attention/fused_paths.h"

#include "attention/backward/backward.h"
#include "attention/forward/forward.h"
#include "attention/reference_path.h"
#include "attention/rowmaps/mapped_backward.h"
#include "attention/rowmaps/mapped_forward.h"

namespace qkv::attn {
namespace {

using core::GradientResults;
using core::GradientSources;
using core::PairProduct;
using core::Problem;
using core::Results;

constexpr PairProduct kDot[] = {PairProduct::kDot};
constexpr PairProduct kTanh[] = {PairProduct::kTanh};

// Calls f with a null pointer to the type of the accumulators.
template <class F>
auto with_sums(const Problem& p, const F& f) {
  return p.accumulator == DType::kFloat64 ? f(static_cast<double*>(nullptr))
                                          : f(static_cast<float*>(nullptr));
}

// The class that runs a call. A mapped call (with input transforms) without queries or keys goes to
// the reference: no row has to be transformed, and the reference accepts any B.
enum class Runs { kPlain, kMapped, kReference };
Runs who_runs(const Problem& p) {
  if (p.product == PairProduct::kDot && p.query_maps.is_identity() && p.key_maps.is_identity()) {
    return Runs::kPlain;
  }
  return runs_on_tiles(p) ? Runs::kMapped : Runs::kReference;
}

void forward(const Implementation& by, const Problem& p, const Results& to, PassUse& use) {
  switch (who_runs(p)) {
    case Runs::kPlain:
      return with_sums(p, [&]<class T>(T*) { use(FusedForward<T>(p, to, *by.target)); });
    case Runs::kMapped:
      return with_sums(p, [&]<class T>(T*) { use(MappedForward<T>(p, to, *by.target)); });
    case Runs::kReference:
      break;
  }
  kReference.functions.forward(kReference, p, to, use);
}

// The reference runs backward passes of packed sequences with gradients of captured arrays: the
// tasks of different sequences have no common order.
void backward(const Implementation& by, const Problem& p, const GradientSources& from,
              const GradientResults& to, PassUse& use) {
  const Runs runs = p.packed() && !to.captured.empty() ? Runs::kReference : who_runs(p);
  switch (runs) {
    case Runs::kPlain:
      return with_sums(p, [&]<class T>(T*) { use(FusedBackward<T>(p, from, to, *by.target)); });
    case Runs::kMapped:
      return with_sums(p, [&]<class T>(T*) { use(MappedBackward<T>(p, from, to, *by.target)); });
    case Runs::kReference:
      break;
  }
  kReference.functions.backward(kReference, p, from, to, use);
}

constexpr Implementation fused(const dense::Path& path, std::span<const PairProduct> products) {
  return {path, products, kRealSums, kBothPasses, {&forward, &backward}};
}

}  // namespace

#define QKV_DOT(with, enumerator, name, highway) fused(dense::path_named("dot/" name), kDot),
#define QKV_ADDITIVE(with, enumerator, name, highway) \
  fused(dense::path_named("additive/" name), kTanh),
constinit const std::array<Implementation, 2 * kernels::kTargets.size()> kFused{
    QKV_FOR_EACH_TARGET(QKV_DOT, ) QKV_FOR_EACH_TARGET(QKV_ADDITIVE, )};
#undef QKV_DOT
#undef QKV_ADDITIVE

bool runs_on_tiles(const Problem& p) noexcept {
  return p.B != 0 && p.H != 0 && p.q_rows != 0 && p.k_rows != 0;
}

}  // namespace qkv::attn
