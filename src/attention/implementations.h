// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_IMPLEMENTATIONS_H_
#define QKV_ATTENTION_IMPLEMENTATIONS_H_

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "core/arena.h"
#include "core/problem.h"
#include "core/results.h"
#include "dense/paths.h"
#include "runtime/tasks.h"

// The ordered list of implementations: the first one for the target in use that supports a problem
// runs it. The reference comes after the fused ones and supports every problem.
namespace qkv::attn {

using core::ScratchSize;

enum class Pass { kForward, kBackward };
inline constexpr std::array kBothPasses{Pass::kForward, Pass::kBackward};
inline constexpr std::array kRealSums{DType::kFloat32, DType::kFloat64};

struct Implementation;

// Measures the scratch memory of a pass that an implementation has built. If there is a call, it
// also reserves that memory in the call and runs the pass.
struct PassUse {
  runtime::Call* call = nullptr;
  ScratchSize scratch{};

  template <class Pass>
  void operator()(Pass&& pass) {
    scratch = core::measure(pass);
    if (call == nullptr) return;
    call->reserve(scratch.shared, scratch.per_worker);
    pass.run(*call);
  }
};

// The functions with which an implementation builds its passes; `by` is the implementation itself.
struct PassFunctions {
  void (*forward)(const Implementation& by, const core::Problem& p, const core::Results& results,
                  PassUse& use);
  void (*backward)(const Implementation& by, const core::Problem& p,
                   const core::GradientSources& sources, const core::GradientResults& results,
                   PassUse& use);
};

// One implementation of attention. It supports exactly the products, accumulator types and passes
// on its lists.
struct Implementation : dense::Path {
  std::span<const core::PairProduct> products;
  std::span<const DType> sums;  // types of accumulators
  std::span<const Pass> passes;
  PassFunctions functions;

  bool has(Pass pass) const {
    return std::find(passes.begin(), passes.end(), pass) != passes.end();
  }
  ScratchSize forward_scratch(const core::Problem& p, const core::Results& results) const {
    PassUse use;
    functions.forward(*this, p, results, use);
    return use.scratch;
  }
  void forward(const core::Problem& p, const core::Results& results, runtime::Call& call) const {
    PassUse use{&call};
    functions.forward(*this, p, results, use);
  }
  ScratchSize backward_scratch(const core::Problem& p, const core::GradientSources& sources,
                               const core::GradientResults& results) const {
    PassUse use;
    functions.backward(*this, p, sources, results, use);
    return use.scratch;
  }
  void backward(const core::Problem& p, const core::GradientSources& sources,
                const core::GradientResults& results, runtime::Call& call) const {
    PassUse use{&call};
    functions.backward(*this, p, sources, results, use);
  }
};

std::span<const Implementation* const> implementations();

// Chooses the implementation that runs a pass over a problem; `forced` names it, or is empty for
// the first one for the target in use that supports the problem. Throws Error if `forced` is
// unknown or does not support the problem, or if QKV_TARGET names no target of this CPU.
const Implementation& choose(const core::Problem& p, std::string_view forced, Pass pass);

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_IMPLEMENTATIONS_H_
