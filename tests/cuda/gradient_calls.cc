// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gradient_calls.h"

#include <exception>

#include <gtest/gtest.h>

#include "tests/attention/gradient_agreement.h"
#include "tests/attention/paths.h"
#include "tests/cuda/emulated_forward.h"

namespace qkv::test {
namespace {

// Whether the bias has a row of its own for each query and a column for each key.
bool has_whole_matrices(const BackwardCall& call) {
  const ConstView &bias = call.options.bias, &q = call.inputs.q, &k = call.inputs.k;
  if (!bias.given() || bias.rank() < 2 || q.rank() < 2 || k.rank() < 2) return false;
  return bias.size(-2) == q.size(-2) && bias.size(-1) == k.size(-2);
}

// The random call without the gradients that the kernels do not compute: those of weights and of
// biases that are broadcast over queries or keys.
BackwardCall supported(const RandomBackward& random) {
  BackwardCall call = random.call();
  call.sources.weights = {};
  if (!has_whole_matrices(call)) call.asked.erase("bias");
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
