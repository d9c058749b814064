// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/forward_calls.h"

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/paths.h"
#include "tests/cuda/emulated_forward.h"

namespace qkv::test {
namespace {

// Weights are rounded to 8 or 11 bits, and small float16 weights to multiples of 2^-24.
Looseness looseness(DType dtype) {
  return {dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-10, true, {"out", "lse", "row_max"}};
}

Outputs rows_only(const Outputs& all) {
  return {.out = all.out, .lse = all.lse, .row_max = all.row_max};
}

bool asks_nothing(const Outputs& x) {
  return !x.out.given() && !x.lse.given() && !x.row_max.given();
}

}  // namespace

void for_each_forward_call(std::uint64_t seed, std::uint64_t index,
                           const std::function<void(const RandomCall&)>& f) {
  for (const auto draw : {RandomCall::Draw::kDot2, RandomCall::Draw::kAnything}) {
    const RandomCall call(seed, index, draw);
    if (call.dtype() != DType::kBFloat16 && call.dtype() != DType::kFloat16) continue;
    const Results buffers(call, 0);
    const Outputs asked = rows_only(buffers.outputs());
    if (asks_nothing(asked)) continue;
    if (emulated_unsupported(call.inputs(), call.options(), asked).empty()) f(call);
  }
}

std::string difference_of_forward(const RandomCall& call, std::string_view path,
                                  const std::function<void(const Outputs&)>& run) {
  const Results want(call, 555);
  const Results got(call, -777);
  Context context = context_on(kReferencePath);
  attention(call.inputs(), call.options(), rows_only(want.outputs()), context);
  try {
    run(rows_only(got.outputs()));
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
  return Agreement::check(call, path, got, want, looseness(call.dtype()));
}

}  // namespace qkv::test
