// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/forward_calls.h"

#include <cstddef>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/paths.h"
#include "tests/cuda/device_forward.h"
#include "tests/cuda/emulated_attention.h"
#include "tests/cuda/emulator.h"

namespace qkv::test {
namespace {

// Returns by how much the results may differ. bfloat16 and float16 weights are rounded to 8 and 11
// bits, and small float16 weights to multiples of 2^-24; float32 weights are not rounded.
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

// Returns those of `all` that the kernels compute: out, lse and row_max, and for 16-bit types also
// entropy and column sums, value sums and weights of all queries (not of listed rows).
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

// Calls f(call) if the kernels support the call, for those of its outputs that they compute.
void call_if_supported(const RandomCall& call, const std::function<void(const RandomCall&)>& f) {
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
    if (call.dtype() == DType::kBFloat16 || call.dtype() == DType::kFloat16) {
      call_if_supported(call, f);
    }
  }
}

void for_each_additive_call(std::uint64_t seed, std::uint64_t index,
                            const std::function<void(const RandomCall&)>& f) {
  const RandomCall call(seed, index, RandomCall::Draw::kAnything);
  if (call.score() == ScoreKind::kAdditive && call.dtype() == DType::kFloat32) {
    call_if_supported(call, f);
  }
}

void for_each_float_call(std::uint64_t seed, std::uint64_t index,
                         const std::function<void(const RandomCall&)>& f) {
  const RandomCall call(seed, index, RandomCall::Draw::kAnything);
  if (call.score() != ScoreKind::kAdditive && call.dtype() == DType::kFloat32) {
    call_if_supported(call, f);
  }
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

Tensor packed(const ConstView& x, const std::vector<Index>& starts) {
  const Index row = x.size(1) * x.size(3) * static_cast<Index>(size_of(x.dtype()));
  Tensor to(x.dtype(), {starts.back(), x.size(1), x.size(3)});
  for (std::size_t n = 0; n + 1 < starts.size(); ++n) {
    const auto b = static_cast<Index>(n);
    const Index rows = starts[n + 1] - starts[n];
    const Tensor from = contiguous(transpose(slice(slice(x, 0, b, b + 1), 2, 0, rows), 1, 2));
    std::memcpy(static_cast<std::byte*>(to.view().data()) + starts[n] * row, from.view().data(),
                static_cast<std::size_t>(rows * row));
  }
  return to;
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
