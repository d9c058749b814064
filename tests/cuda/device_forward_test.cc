// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_forward.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/conformance.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/forward_calls.h"

// The forward kernels on a GPU, compared with the reference. The calls are those that
// forward_test.cc runs in the emulator, and more of them.
namespace qkv::test {
namespace {

constexpr const char* kPath = "cuda on a device";

// Tools that watch every access slow a run down too much for 20.
int runs() { return is_brief() ? 2 : 20; }

class DeviceForward : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = why_no_device_attention();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(DeviceForward, AgreesWithTheReferenceInEveryRun) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for_each_forward_call(seed, index, [&](const RandomCall& call) {
      findings.count(kPath, call.features());
      const std::string difference =
          difference_of_forward(call, kPath, [&](const Outputs& outputs) {
            device_attention(call.inputs(), call.options(), outputs, runs());
          });
      if (difference.empty()) return;
      findings.tell(kPath, difference, replay_of(call.describe(), seed, index, "*DeviceForward*0"));
    });
  };
  if (!run_part(2, GetParam(), at_scale(1500, 120), findings, check)) return;
  findings.expect_met(kPath, kCoveredOfForward, is_thorough() ? 2 : 0, false);
}

INSTANTIATE_TEST_SUITE_P(Part, DeviceForward, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
