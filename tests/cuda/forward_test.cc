// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/conformance.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/emulated_forward.h"
#include "tests/support/compare.h"

// The forward kernels of src/cuda in the emulator, compared with the reference.
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

// Returns how the kernel differs from the reference, or nothing.
std::string conform(const RandomCall& call, std::uint32_t seed) {
  const Results want(call, 555);
  const Results got(call, -777);
  Context context = context_on(kReferencePath);
  attention(call.inputs(), call.options(), rows_only(want.outputs()), context);
  try {
    emulated_attention(call.inputs(), call.options(), rows_only(got.outputs()), seed);
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
  return Agreement::check(call, "cuda", got, want, looseness(call.dtype()));
}

constexpr const char* kPath = "cuda";

constexpr std::string_view kCovered =
    "scale, softcap, bias, bias -inf, top left, bottom right, offset, offsets, alibi, causal, "
    "window, keep, padding, lengths, lengths per query, sinks, odd sink, dropout, packed, empty "
    "sequence, grouped heads, rank 2, rank 3, rank 4, rank 5, mixed ranks, no v, NaN in q, NaN in "
    "k, NaN in v, infinity in q, infinity in k, infinity in v, layout permuted, layout sliced, "
    "layout negative, layout offset, layout broadcast, -> out, -> lse, -> row_max";

class EmulatedForward : public testing::TestWithParam<int> {};

TEST_P(EmulatedForward, AgreesWithTheReference) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for (const auto draw : {RandomCall::Draw::kDot2, RandomCall::Draw::kAnything}) {
      const RandomCall call(seed, index, draw);
      if (call.dtype() != DType::kBFloat16 && call.dtype() != DType::kFloat16) continue;
      const Outputs asked = rows_only(Results(call, 0).outputs());
      if (asks_nothing(asked)) continue;
      if (!emulated_unsupported(call.inputs(), call.options(), asked).empty()) continue;
      findings.count(kPath, call.features());
      const std::string difference = conform(call, static_cast<std::uint32_t>(index));
      if (difference.empty()) continue;
      findings.tell(kPath, difference,
                    replay_of(call.describe(), seed, index, "*EmulatedForward*0"));
    }
  };
  if (!run_part(1, GetParam(), at_scale(1000, 120), findings, check)) return;
  findings.expect_met(kPath, kCovered, is_thorough() ? 2 : 0, false);
}

INSTANTIATE_TEST_SUITE_P(Part, EmulatedForward, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
