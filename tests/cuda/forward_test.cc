// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "tests/attention/conformance.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/emulated_forward.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/forward_calls.h"

// The forward kernels of src/cuda in the emulator, compared with the reference.
namespace qkv::test {
namespace {

constexpr const char* kPath = "cuda";

class EmulatedForward : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = why_no_emulator();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(EmulatedForward, AgreesWithTheReference) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for_each_forward_call(seed, index, [&](const RandomCall& call) {
      findings.count(kPath, call.features());
      const std::string difference =
          difference_of_forward(call, kPath, [&](const Outputs& outputs) {
            emulated_attention(call.inputs(), call.options(), outputs,
                               static_cast<std::uint32_t>(index));
          });
      if (difference.empty()) return;
      findings.tell(kPath, difference,
                    replay_of(call.describe(), seed, index, "*EmulatedForward*0"));
    });
  };
  if (!run_part(1, GetParam(), at_scale(1000, 60), findings, check)) return;
  findings.expect_met(kPath, kCoveredOfForward, is_thorough() ? 2 : 0, false);
}

INSTANTIATE_TEST_SUITE_P(Part, EmulatedForward, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
