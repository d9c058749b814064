// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/conformance.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/emulated_forward.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/forward_calls.h"
#include "tests/support/arrays.h"

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
  // Compares a part of so many random calls with the reference.
  static void compare(decltype(for_each_forward_call)& for_each, int calls,
                      std::string_view covered) {
    Findings findings;
    const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
      for_each(seed, index, [&](const RandomCall& call) {
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
    if (!run_part(1, GetParam(), calls, findings, check)) return;
    findings.expect_met(kPath, covered, is_thorough() ? 2 : 0, false);
  }
};

TEST_P(EmulatedForward, AgreesWithTheReference) {
  compare(for_each_forward_call, at_scale(1000, 60), kCoveredOfForward);
}

TEST_P(EmulatedForward, OfFloat32AgreesWithTheReference) {
  compare(for_each_float_call, at_scale(3000, 200), kCoveredOfFloat);
}

// Where the rounding of the largest score is larger than the differences of scores.
TEST(EmulatedForwardEdges, EqualScoresOfAnySizeHaveEqualWeights) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  const Guarded zeros(DType::kBFloat16, {1, 1, 5, 8}, Layout::kContiguous);
  Guarded v(DType::kBFloat16, {1, 1, 5, 8}, Layout::kContiguous);
  v.fill(std::vector<double>(40, 1.5));
  Guarded bias(DType::kFloat32, {5, 5}, Layout::kContiguous);
  const Guarded out(DType::kBFloat16, {1, 1, 5, 8}, Layout::kContiguous);
  const Guarded lse(DType::kFloat32, {1, 1, 5}, Layout::kContiguous);
  for (const double size : {1e3, -1e5, 1e11, -1e30}) {
    bias.fill(std::vector<double>(25, size));
    emulated_attention({zeros, zeros, v}, {.bias = bias.view()}, {.out = out, .lse = lse});
    for (Index i = 0; i < 5; ++i) {
      EXPECT_EQ(static_cast<float>(out.view().at<BFloat16>({0, 0, i, 0})), 1.5F) << size;
      EXPECT_NEAR(lse.view().at<float>({0, 0, i}), size + std::log(5.0), 1e-6 * std::abs(size));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Part, EmulatedForward, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
