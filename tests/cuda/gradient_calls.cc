// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/gradient_calls.h"

#include <exception>
#include <variant>

#include <gtest/gtest.h>

#include "tests/attention/gradient_agreement.h"
#include "tests/attention/paths.h"
#include "tests/cuda/emulated_attention.h"

namespace qkv::test {
namespace {

// Whether the bias is given and not broadcast over queries or keys.
bool has_whole_matrices(const BackwardCall& call) {
  const ConstView &bias = call.options.bias, &q = call.inputs.q, &k = call.inputs.k;
  if (!bias.given() || bias.rank() < 2 || q.rank() < 2 || k.rank() < 2) return false;
  return bias.size(-2) == q.size(-2) && bias.size(-1) == k.size(-2);
}

bool is_additive(const BackwardCall& call) {
  return std::holds_alternative<Additive>(call.options.score);
}

bool is_float(const BackwardCall& call) { return call.inputs.q.dtype() == DType::kFloat32; }

// Returns the random call without dweights, and without the gradients that the kernels do not
// compute: those of biases that are broadcast over queries or keys; for float32 those of all
// biases, of slopes and of sinks. If no gradient is left, the call asks for that of q.
BackwardCall supported(const RandomBackward& random) {
  BackwardCall call = random.call();
  call.sources.weights = {};
  if (!has_whole_matrices(call)) call.asked.erase("bias");
  if (is_float(call)) {
    for (const char* name : {"bias", "alibi", "sinks"}) call.asked.erase(name);
  }
  if (call.asked.empty()) call.ask("q", Layout::kContiguous);
  return call;
}

// Whether the call has dout or dlse, and the kernels support it.
bool is_supported(const BackwardCall& call) {
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
    if (is_supported(call)) f(call, random);
  }
}

namespace {

void for_each_of_float32(
    std::uint64_t seed, std::uint64_t index, bool additive,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f) {
  const RandomBackward random(seed, index, RandomCall::Draw::kAnything);
  if (random.forward().dtype() != DType::kFloat32) return;
  const BackwardCall call = supported(random);
  if (is_additive(call) == additive && is_supported(call)) f(call, random);
}

}  // namespace

void for_each_float_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f) {
  for_each_of_float32(seed, index, false, f);
}

void for_each_additive_gradient_call(
    std::uint64_t seed, std::uint64_t index,
    const std::function<void(const BackwardCall& call, const RandomBackward& random)>& f) {
  for_each_of_float32(seed, index, true, f);
}

std::set<std::string> features_of(const BackwardCall& call, const RandomBackward& random) {
  std::set<std::string> features = random.features();
  std::erase_if(features, [&](const std::string& feature) {
    return feature.starts_with("asks ") && call.asked.count(feature.substr(5)) == 0;
  });
  return features;
}

std::string difference_of_gradients(
    const BackwardCall& call, const RandomBackward& random, Place place,
    const std::function<void(const Saved&, const InputGradients&)>& run) {
  const SavedTensors saved(call, kReferencePath);
  SavedTensors own(call, kReferencePath);
  const Gradients want(call);
  const Gradients got(call);
  run_backward(call, kReferencePath, saved.views(), want);
  try {
    // Scores of float32 kernels differ from the reference's: these kernels need their own lse.
    if (is_float(call)) {
      Outputs outputs{.lse = own.lse.view()};
      if (call.inputs.v.given()) outputs.out = own.out.view();
      attention_at(place, call.inputs, call.options, outputs);
    }
    run(own.views(), got.views());
  } catch (const std::exception& error) {
    return error.what();
  }
  for (const auto& [name, array] : got.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return "d" + name + ": " + intact.message();
  }
  const testing::AssertionResult intact = random.intact();
  if (!intact) return intact.message();
  const GradientBounds bounds(
      call, saved.views(), is_additive(call) ? Same::kProjections : Same::kNothing,
      is_float(call) ? GradientBounds::Rounded::kNot : GradientBounds::Rounded::kInTiles);
  return bounds.check(got, want, random.overflows());
}

}  // namespace qkv::test
