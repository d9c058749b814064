// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gradient_calls.h"

#include <exception>

#include <gtest/gtest.h>

#include "tests/attention/gradient_agreement.h"
#include "tests/attention/paths.h"
#include "tests/cuda/emulated_forward.h"

namespace qkv::test {
namespace {

// The call without what the kernels do not have: gradients of weights, and of options.
BackwardCall supported(const RandomBackward& random) {
  BackwardCall call = random.call();
  call.sources.weights = {};
  for (const char* name : {"bias", "alibi", "sinks"}) call.asked.erase(name);
  if (call.asked.empty()) call.ask("q", Layout::kContiguous);
  return call;
}

bool takes(const BackwardCall& call) {
  if (!call.sources.out.given() && !call.sources.lse.given()) return false;
  const SavedTensors saved(call, kReferencePath);
  const Gradients shapes(call);
  return emulated_unsupported(call.inputs, call.options, saved.views(), call.sources,
                              shapes.views())
      .empty();
}

}  // namespace

void for_each_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f) {
  for (const auto draw : {RandomCall::Draw::kBFloat16, RandomCall::Draw::kAnything}) {
    const RandomBackward random(seed, index, draw);
    const DType dtype = random.forward().dtype();
    if (dtype != DType::kBFloat16 && dtype != DType::kFloat16) continue;
    const BackwardCall call = supported(random);
    if (takes(call)) f(call, random);
  }
}

std::string difference_of_gradients(
    const BackwardCall& call, const RandomBackward& random,
    const std::function<void(const Saved&, const InputGradients&)>& run) {
  const SavedTensors saved(call, kReferencePath);
  const Gradients want(call);
  const Gradients got(call);
  run_backward(call, kReferencePath, saved.views(), want);
  try {
    run(saved.views(), got.views());
  } catch (const std::exception& error) {
    return error.what();
  }
  for (const auto& [name, array] : got.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return "d" + name + ": " + intact.message();
  }
  const testing::AssertionResult intact = random.intact();
  if (!intact) return intact.message();
  const GradientBounds bounds(call, saved.views(), Same::kNothing,
                              GradientBounds::Rounded::kInTiles);
  return bounds.check(got, want, random.overflows());
}

}  // namespace qkv::test
