// SPDX-License-Identifier: Apache-2.0
#include "attention/reference_path.h"

#include "reference/backward.h"
#include "reference/forward.h"
#include "runtime/tasks.h"

namespace qkv::door {
namespace {

using core::GradientResults;
using core::GradientSources;
using core::measure;
using core::Problem;
using core::Results;
using core::ScratchSize;

const char* supports_everything(const Problem&) { return nullptr; }

ScratchSize forward_scratch(const Problem& p, const Results& to) {
  return p.accumulator == DType::kFloat64 ? measure(reference::Forward<double>(p, to))
                                          : measure(reference::Forward<float>(p, to));
}

void forward(const Problem& p, const Results& to, runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    reference::Forward<double>(p, to).run(call);
  } else {
    reference::Forward<float>(p, to).run(call);
  }
}

ScratchSize backward_scratch(const Problem& p, const GradientSources& from,
                             const GradientResults& to) {
  return p.accumulator == DType::kFloat64 ? measure(reference::Backward<double>(p, from, to))
                                          : measure(reference::Backward<float>(p, from, to));
}

void backward(const Problem& p, const GradientSources& from, const GradientResults& to,
              runtime::Call& call) {
  if (p.accumulator == DType::kFloat64) {
    reference::Backward<double>(p, from, to).run(call);
  } else {
    reference::Backward<float>(p, from, to).run(call);
  }
}

}  // namespace

constinit const Implementation kReference{"reference", &supports_everything, &forward_scratch,
                                          &forward,    &backward_scratch,    &backward};

}  // namespace qkv::door
