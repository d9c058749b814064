// SPDX-License-Identifier: Apache-2.0
#include "attention/reference_path.h"

#include "core/bfloat16_dot2.h"
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

void plain_forward(const Implementation&, const Problem& p, const Results& to, PassUse& use) {
  if (p.accumulator == DType::kFloat64) {
    use(reference::Forward<double>(p, to));
  } else {
    use(reference::Forward<float>(p, to));
  }
}

// Forward pass with the BF16 two-way dot products of the target avx512bf16, computed on any CPU.
void dot2_forward(const Implementation& by, const Problem& p, const Results& to, PassUse& use) {
  if (!core::takes_dot2(p)) return plain_forward(by, p, to, use);
  use(reference::Forward<float>(p, to, true));
}

void plain_backward(const Implementation&, const Problem& p, const GradientSources& from,
                    const GradientResults& to, PassUse& use) {
  if (p.accumulator == DType::kFloat64) {
    use(reference::Backward<double>(p, from, to));
  } else {
    use(reference::Backward<float>(p, from, to));
  }
}

// Backward pass with the BF16 two-way dot products of the target avx512bf16, computed on any CPU.
void dot2_backward(const Implementation& by, const Problem& p, const GradientSources& from,
                   const GradientResults& to, PassUse& use) {
  if (!core::takes_dot2(p, from)) return plain_backward(by, p, from, to, use);
  use(reference::Backward<float>(p, from, to, true));
}

}  // namespace

constinit const Implementation kReference{dense::path_named("reference"),
                                          kProducts,
                                          kRealSums,
                                          kBothPasses,
                                          {&plain_forward, &plain_backward}};
constinit const Implementation kDot2Reference{dense::path_named("reference/bf16"),
                                              kProducts,
                                              kRealSums,
                                              kBothPasses,
                                              {&dot2_forward, &dot2_backward}};

}  // namespace qkv::attn
