// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/reference_path.h"

#include "reference/backward.h"
#include "reference/forward.h"
#include "runtime/tasks.h"

namespace qkv::attn {
namespace {

using core::GradientResults;
using core::GradientSources;
using core::measure;
using core::Problem;
using core::Results;
using core::ScratchSize;

constexpr core::PairProduct kProducts[] = {core::PairProduct::kDot, core::PairProduct::kTanh};

ScratchSize plain_forward_scratch(const Implementation&, const Problem& p, const Results& to) {
  return p.accumulator == DType::kFloat64 ? measure(reference::Forward<double>(p, to))
                                          : measure(reference::Forward<float>(p, to));
}

void plain_forward(const Implementation&, const Problem& p, const Results& to,
                   runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    reference::Forward<double>(p, to).run(call);
  } else {
    reference::Forward<float>(p, to).run(call);
  }
}

ScratchSize plain_backward_scratch(const Implementation&, const Problem& p,
                                   const GradientSources& from, const GradientResults& to) {
  return p.accumulator == DType::kFloat64 ? measure(reference::Backward<double>(p, from, to))
                                          : measure(reference::Backward<float>(p, from, to));
}

void plain_backward(const Implementation&, const Problem& p, const GradientSources& from,
                    const GradientResults& to, runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    reference::Backward<double>(p, from, to).run(call);
  } else {
    reference::Backward<float>(p, from, to).run(call);
  }
}

}  // namespace

constinit const Implementation kReference{
    "reference",
    std::nullopt,
    kProducts,
    kRealSums,
    kBothPasses,
    {&plain_forward_scratch, &plain_forward, &plain_backward_scratch, &plain_backward}};

}  // namespace qkv::attn
