// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_forward.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/attention/agreement.h"
#include "tests/attention/conformance.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/forward_calls.h"
#include "tests/cuda/gradient_calls.h"

// Compares the kernels on a GPU with the reference. Calls are drawn as in forward_test.cc,
// additive_test.cc and gradients_test.cc, which run in the emulator, and at least as many.
namespace qkv::test {
namespace {

constexpr const char* kPath = "cuda on a device";
constexpr const char* kProgram = "test_cuda";

// The number of runs of each call, which must all give equal bits. 20 runs would be too slow under
// a tool that watches every memory access.
int runs() { return is_brief() ? 2 : 20; }

class DeviceForward : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = why_no_device_attention();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  static void compare(const RandomCall& call, std::uint64_t seed, std::uint64_t index,
                      Findings& findings) {
    findings.count(kPath, call.features());
    const std::string difference = difference_of_forward(call, kPath, [&](const Outputs& outputs) {
      device_attention(call.inputs(), call.options(), outputs, runs());
    });
    if (difference.empty()) return;
    findings.tell(kPath, difference,
                  replay_of(call.describe(), seed, index, "*DeviceForward*0", kProgram));
  }

  static void compare_gradients(decltype(for_each_gradient_call)& for_each, int calls,
                                std::string_view covered, std::string_view asked = {}) {
    Findings findings;
    const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
      for_each(seed, index, [&](const BackwardCall& call, const RandomBackward& random) {
        findings.count(kPath, features_of(call, random));
        const std::string difference = difference_of_gradients(
            call, random, Place::kDevice, [&](const Saved& saved, const InputGradients& gradients) {
              device_backward(call.inputs, call.options, saved, call.sources, gradients, runs());
            });
        if (difference.empty()) return;
        findings.tell(kPath, difference,
                      replay_of(random.describe(), seed, index, "*DeviceForward*0", kProgram));
      });
    };
    if (!run_part(2, GetParam(), calls, findings, check)) return;
    for (const std::string_view features : {covered, asked}) {
      if (!features.empty()) findings.expect_met(kPath, features, is_thorough() ? 2 : 0, false);
    }
  }
};

TEST_P(DeviceForward, AgreesWithTheReferenceInEveryRun) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for_each_forward_call(seed, index,
                          [&](const RandomCall& call) { compare(call, seed, index, findings); });
  };
  if (!run_part(2, GetParam(), at_scale(1500, 120), findings, check)) return;
  findings.expect_met(kPath, kCoveredOfForward, is_thorough() ? 2 : 0, false);
}

TEST_P(DeviceForward, OfAdditiveScoresAgreesWithTheReferenceInEveryRun) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for_each_additive_call(seed, index,
                           [&](const RandomCall& call) { compare(call, seed, index, findings); });
  };
  if (!run_part(2, GetParam(), at_scale(10000, 800), findings, check)) return;
  const int least = is_thorough() ? 2 : 0;
  findings.expect_met(kPath, kCoveredOfAdditive, least, false);
  findings.expect_met(kPath, covered_of(ScoreKind::kAdditive), least, false);
}

TEST_P(DeviceForward, OfGradientsAgreesWithTheReferenceInEveryRun) {
  compare_gradients(for_each_gradient_call, at_scale(1000, 80), kCoveredOfGradients);
}

TEST_P(DeviceForward, OfAdditiveGradientsAgreesWithTheReferenceInEveryRun) {
  compare_gradients(for_each_additive_gradient_call, at_scale(3000, 150), kCoveredOfFloatGradients,
                    kAskedOfAdditive);
}

TEST_P(DeviceForward, OfFloat32AgreesWithTheReferenceInEveryRun) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for_each_float_call(seed, index,
                        [&](const RandomCall& call) { compare(call, seed, index, findings); });
  };
  if (!run_part(2, GetParam(), at_scale(3000, 200), findings, check)) return;
  findings.expect_met(kPath, kCoveredOfFloat, is_thorough() ? 2 : 0, false);
}

TEST_P(DeviceForward, OfFloat32GradientsAgreesWithTheReferenceInEveryRun) {
  compare_gradients(for_each_float_gradient_call, at_scale(3000, 150), kCoveredOfFloatGradients);
}

INSTANTIATE_TEST_SUITE_P(Part, DeviceForward, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
