// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/storage.h"
#include "tests/attention/conformance.h"
#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/emulated_attention.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/forward_calls.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"

// Compares the forward kernels of src/cuda in the emulator with the reference.
namespace qkv::test {
namespace {

constexpr const char* kPath = "cuda";
constexpr const char* kProgram = "test_cuda";

class EmulatedForward : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = why_no_emulator();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  // Compares the `calls` random calls of part GetParam() with the reference.
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
                      replay_of(call.describe(), seed, index, "*EmulatedForward*0", kProgram));
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

// A weight is 2^(factor s - factor m) for a score s and the largest score m. The rounding error of
// factor m grows with m, but must not show where scores are equal.
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

// Three keys have scores of -inf: key 1 by an infinite channel, key 20 by a product that overflows
// (float16: also by an infinite channel), and key 63 by both. Their values are infinite or NaN. No
// mask applies.
TEST(EmulatedForwardEdges, ScoresOfMinusInfinityKeepValuesOut) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  constexpr Index kTq = 5, kTk = 70;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Index width : {8, 100, 200}) {
      Random random(4);
      Guarded q(dtype, {1, 1, kTq, width}, Layout::kContiguous);
      Guarded k(dtype, {1, 1, kTk, width}, Layout::kContiguous);
      Guarded v(dtype, {1, 1, kTk, width}, Layout::kContiguous);
      for (Guarded* x : {&q, &k, &v}) x->fill_normal(random);
      const auto put = [&](const Guarded& x, Index row, Index channel, double number) {
        core::store(dtype, x.view().data(), row * width + channel, number);
      };
      for (Index i = 0; i < kTq; ++i) {
        put(q, i, 0, 1);
        put(q, i, 1, dtype == DType::kBFloat16 ? 0x1p100 : 1);
      }
      for (Index j = 0; j < kTk; ++j) put(k, j, 1, 0);
      // float16 has no products that overflow.
      const double large = dtype == DType::kBFloat16 ? 0x1p100 : kInfinity;
      put(k, 1, 0, -kInfinity);
      put(k, 20, 1, -large);
      put(k, 63, 0, -kInfinity);
      put(k, 63, 1, -large);
      put(v, 1, 3, kInfinity);
      put(v, 20, 4, std::numeric_limits<double>::quiet_NaN());
      put(v, 63, 5, -kInfinity);
      const Guarded out(dtype, {1, 1, kTq, width}, Layout::kContiguous);
      const Guarded want(dtype, {1, 1, kTq, width}, Layout::kContiguous);
      emulated_attention({q, k, v}, {}, {.out = out});
      Context context = context_on(kReferencePath);
      attention({q, k, v}, {}, {.out = want}, context);
      EXPECT_LE(largest_difference(values_of(out.view()), values_of(want.view())), 0.05) << width;
    }
  }
}

// The dot products with key 20 are finite, but times the scale they are -inf.
TEST(EmulatedForwardEdges, AScaleThatMakesScoresInfiniteMasks) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  constexpr Index kTq = 5, kTk = 70, kWidth = 8;
  const auto bf16 = [](Index rows) {
    return Guarded(DType::kBFloat16, {1, 1, rows, kWidth}, Layout::kContiguous);
  };
  Random random(5);
  Guarded q = bf16(kTq), k = bf16(kTk), v = bf16(kTk);
  for (Guarded* x : {&q, &k, &v}) x->fill_normal(random);
  for (Index i = 0; i < kTq; ++i) q.view().at<BFloat16>({0, 0, i, 1}) = BFloat16(0x1p100F);
  for (Index j = 0; j < kTk; ++j) k.view().at<BFloat16>({0, 0, j, 1}) = BFloat16(0);
  k.view().at<BFloat16>({0, 0, 20, 1}) = BFloat16(-0x1p27F);
  v.view().at<BFloat16>({0, 0, 20, 4}) = BFloat16(std::numeric_limits<float>::quiet_NaN());
  const Guarded out = bf16(kTq), want = bf16(kTq);
  const Options options{.scale = 4};
  emulated_attention({q, k, v}, options, {.out = out});
  Context context = context_on(kReferencePath);
  attention({q, k, v}, options, {.out = want}, context);
  EXPECT_LE(largest_difference(values_of(out.view()), values_of(want.view())), 0.05);
}

INSTANTIATE_TEST_SUITE_P(Part, EmulatedForward, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
