// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/forward_calls.h"

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/paths.h"
#include "tests/cuda/device_forward.h"
#include "tests/cuda/emulated_forward.h"
#include "tests/cuda/emulator.h"

namespace qkv::test {
namespace {

// Weights are rounded to 8 or 11 bits, and small float16 weights to multiples of 2^-24; those of
// additive scores are not.
Looseness looseness(DType dtype, const Outputs& asked) {
  const double weights = dtype == DType::kFloat32    ? 0
                         : dtype == DType::kBFloat16 ? 0x1p-8
                                                     : 0x1p-10;
  Looseness loose{weights, true};
  for_each_buffer(asked, [&](std::string_view name, const View& buffer) {
    if (buffer.given()) loose.results.emplace(name);
  });
  return loose;
}

// The results that the kernels have: of all queries, not of listed ones.
Outputs supported(const RandomCall& call, const Outputs& all) {
  Outputs some{.out = all.out, .lse = all.lse, .row_max = all.row_max};
  if (call.dtype() == DType::kFloat32) return some;
  some.entropy = all.entropy;
  if (!all.column_sums.rows.given()) {
    some.column_sums = all.column_sums;
    some.value_sums = all.value_sums;
  }
  if (!all.weights.rows.given()) some.weights = all.weights;
  return some;
}

bool asks_nothing(const Outputs& x) {
  bool nothing = true;
  for_each_buffer(
      x, [&](std::string_view, const View& buffer) { nothing = nothing && !buffer.given(); });
  return nothing;
}

// Calls f with a call if the kernels support it.
void take(const RandomCall& call, const std::function<void(const RandomCall&)>& f) {
  const Results buffers(call, 0);
  const Outputs asked = supported(call, buffers.outputs());
  if (asks_nothing(asked)) return;
  if (emulated_unsupported(call.inputs(), call.options(), asked).empty()) f(call);
}

}  // namespace

void for_each_forward_call(std::uint64_t seed, std::uint64_t index,
                           const std::function<void(const RandomCall&)>& f) {
  for (const auto draw : {RandomCall::Draw::kBFloat16, RandomCall::Draw::kAnything}) {
    const RandomCall call(seed, index, draw);
    if (call.dtype() == DType::kBFloat16 || call.dtype() == DType::kFloat16) take(call, f);
  }
}

void for_each_additive_call(std::uint64_t seed, std::uint64_t index,
                            const std::function<void(const RandomCall&)>& f) {
  const RandomCall call(seed, index, RandomCall::Draw::kAnything);
  if (call.score() == ScoreKind::kAdditive && call.dtype() == DType::kFloat32) take(call, f);
}

void for_each_float_call(std::uint64_t seed, std::uint64_t index,
                         const std::function<void(const RandomCall&)>& f) {
  const RandomCall call(seed, index, RandomCall::Draw::kAnything);
  if (call.score() != ScoreKind::kAdditive && call.dtype() == DType::kFloat32) take(call, f);
}

std::string difference_of_forward(const RandomCall& call, std::string_view path,
                                  const std::function<void(const Outputs&)>& run) {
  const Results want(call, 555);
  const Results got(call, -777);
  Context context = context_on(kReferencePath);
  attention(call.inputs(), call.options(), supported(call, want.outputs()), context);
  try {
    run(supported(call, got.outputs()));
  } catch (const std::exception& error) {
    return error.what();
  }
  for (const auto& [name, array] : got.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return name + ": " + intact.message();
  }
  for (const Guarded& array : call.arrays()) {
    const testing::AssertionResult intact = array.intact();
    if (!intact) return intact.message();
  }
  return Agreement::check(call, path, got, want,
                          looseness(call.dtype(), supported(call, want.outputs())));
}

std::string why_not(Place place) {
  return place == Place::kDevice ? why_no_device_attention() : why_no_emulator();
}

void attention_at(Place place, const Inputs& inputs, const Options& options, const Outputs& outputs,
                  std::uint32_t seed) {
  if (place == Place::kDevice) {
    device_attention(inputs, options, outputs);
  } else {
    emulated_attention(inputs, options, outputs, seed);
  }
}

void backward_at(Place place, const Inputs& inputs, const Options& options, const Saved& saved,
                 const OutputGradients& sources, const InputGradients& gradients,
                 std::uint32_t seed) {
  if (place == Place::kDevice) {
    device_backward(inputs, options, saved, sources, gradients);
  } else {
    emulated_backward(inputs, options, saved, sources, gradients, seed);
  }
}

}  // namespace qkv::test
