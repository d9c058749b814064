// SPDX-License-Identifier: Apache-2.0
#include "attention/reference_path.h"

#include "core/bfloat16_products.h"
#include "reference/backward.h"
#include "reference/forward.h"
#include "runtime/tasks.h"

namespace qkv::attn {
namespace {

using core::GradientResults;
using core::GradientSources;
using core::Problem;
using core::Results;

constexpr core::PairProduct kProducts[] = {core::PairProduct::kDot, core::PairProduct::kTanh};

// `kOfBFloat16`: the kind of products in calls that multiply bfloat16. Any CPU computes them.
template <core::Products kOfBFloat16>
void forward(const Implementation&, const Problem& p, const Results& to, PassUse& use) {
  if (p.accumulator == DType::kFloat64) {
    use(reference::Forward<double>(p, to));
  } else {
    const bool takes = core::multiplies_bfloat16(p);
    use(reference::Forward<float>(p, to, takes ? kOfBFloat16 : core::Products::kPlain));
  }
}

template <core::Products kOfBFloat16>
void backward(const Implementation&, const Problem& p, const GradientSources& from,
              const GradientResults& to, PassUse& use) {
  if (p.accumulator == DType::kFloat64) {
    use(reference::Backward<double>(p, from, to));
  } else {
    const bool takes = core::multiplies_bfloat16(p, from);
    use(reference::Backward<float>(p, from, to, takes ? kOfBFloat16 : core::Products::kPlain));
  }
}

template <core::Products kOfBFloat16>
consteval Implementation reference_named(std::string_view name) {
  return {dense::path_named(name),
          kProducts,
          kRealSums,
          kBothPasses,
          {&forward<kOfBFloat16>, &backward<kOfBFloat16>}};
}

}  // namespace

constinit const Implementation kReference = reference_named<core::Products::kPlain>("reference");
constinit const Implementation kDot2Reference =
    reference_named<core::Products::kDot2>("reference/bf16");
constinit const Implementation kAmxReference =
    reference_named<core::Products::kAmx>("reference/amx");

}  // namespace qkv::attn
