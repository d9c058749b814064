// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_IMPLEMENTATIONS_H_
#define QKV_ATTENTION_IMPLEMENTATIONS_H_

#include <span>
#include <string>
#include <string_view>

#include "core/arena.h"
#include "core/problem.h"
#include "core/results.h"
#include "runtime/tasks.h"

// The ordered list: the first implementation that supports a problem runs it. The reference
// stands last and supports everything.
namespace qkv::door {

using core::ScratchSize;

enum class Pass { kForward, kBackward };

struct Implementation {
  std::string_view name;
  // Null when the problem is supported, else the first reason why not ("bfloat16 inputs").
  const char* (*unsupported)(const core::Problem& p);
  ScratchSize (*forward_scratch)(const core::Problem& p, const core::Results& results);
  void (*forward)(const core::Problem& p, const core::Results& results, runtime::Call& call);
  // Null where there is no backward pass of its own.
  ScratchSize (*backward_scratch)(const core::Problem& p, const core::GradientSources& sources,
                                  const core::GradientResults& results);
  void (*backward)(const core::Problem& p, const core::GradientSources& sources,
                   const core::GradientResults& results, runtime::Call& call);
};

std::span<const Implementation* const> implementations();

// The implementation of a pass over a problem; `forced` (may be empty) names the one to take.
// Throws Error when there is none of that name, or it does not support the problem, and when
// QKV_TARGET in the environment names no target.
const Implementation& choose(const core::Problem& p, std::string_view forced, Pass pass);

// The CPU target that a layer's own loops take, kReferenceTarget for none: the one in use, or that
// of the implementation which `forced` (may be empty) names. Throws Error as choose() does.
std::string_view target_of_layers(std::string_view forced, std::string_view function);

}  // namespace qkv::door

#endif  // QKV_ATTENTION_IMPLEMENTATIONS_H_
