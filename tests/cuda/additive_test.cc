// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/conformance.h"
#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"
#include "tests/cuda/emulated_attention.h"
#include "tests/cuda/forward_calls.h"
#include "tests/support/compare.h"

// Compares the forward kernels of the additive score in the emulator with the reference, and tests
// the precision of scores in the emulator and on a device.
namespace qkv::test {
namespace {

constexpr const char* kPath = "cuda";
constexpr const char* kProgram = "test_cuda";

class EmulatedAdditive : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(Place::kEmulator);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(EmulatedAdditive, AgreesWithTheReference) {
  Findings findings;
  const auto check = [&](std::uint64_t seed, std::uint64_t index, bool) {
    for_each_additive_call(seed, index, [&](const RandomCall& call) {
      findings.count(kPath, call.features());
      const std::string difference =
          difference_of_forward(call, kPath, [&](const Outputs& outputs) {
            emulated_attention(call.inputs(), call.options(), outputs,
                               static_cast<std::uint32_t>(index));
          });
      if (difference.empty()) return;
      findings.tell(kPath, difference,
                    replay_of(call.describe(), seed, index, "*EmulatedAdditive*0", kProgram));
    });
  };
  if (!run_part(2, GetParam(), at_scale(7000, 400), findings, check)) return;
  const int least = is_thorough() ? 2 : 0;
  findings.expect_met(kPath, kCoveredOfAdditive, least, false);
  findings.expect_met(kPath, covered_of(ScoreKind::kAdditive), least, false);
}

INSTANTIATE_TEST_SUITE_P(Part, EmulatedAdditive, testing::Range(0, kParts));

// ---- precision --------------------------------------------------------------------------------

// Returns [count,D] normal numbers, or for D = 1 powers of two, whose products are exact.
Tensor rows(Index count, Index D, std::uint64_t seed) {
  Tensor x = normal({count, D}, seed);
  if (D > 1) return x;
  int n = 0;
  for (float& y : x.values<float>()) {
    y = std::ldexp(n % 2 == 0 ? 1.0F : -1.0F, (n / 2 + 1) % 3 - 1);
    ++n;
  }
  return x;
}

// Returns the score of query i with key i for each i. The window masks all other keys, so that
// row_max is this score.
template <class Attention>
std::vector<double> scores_of_pairs(DType dtype, const Tensor& q, const Tensor& k,
                                    const Additive& score, const Attention& run) {
  const Tensor q_d = convert(q, dtype), k_d = convert(k, dtype);
  const Tensor wq = convert(score.wq, dtype), wk = convert(score.wk, dtype);
  const Tensor v = convert(score.v, dtype);
  Tensor row_max(dtype, {q.size(0)});
  const Options options{.score = Additive{wq, wk, v}, .masks = {Window{0, 0}}};
  run(Inputs{q_d, k_d}, options, Outputs{.row_max = row_max.view()});
  return values_of(row_max);
}

class AdditivePrecision : public testing::TestWithParam<Place> {};

// Tests the bound of docs/semantics.md, which AdditivePathPrecision tests for the paths of CPUs.
TEST_P(AdditivePrecision, ScoresAreWithinTheBoundOfTanh) {
  const std::string reason = why_not(GetParam());
  if (!reason.empty()) GTEST_SKIP() << reason;
  const auto by_kernel = [](const Inputs& in, const Options& options, const Outputs& out) {
    attention_at(GetParam(), in, options, out);
  };
  const auto by_reference = [](const Inputs& in, const Options& options, const Outputs& out) {
    Context context = context_on(kReferencePath);
    attention(in, options, out, context);
  };
  constexpr Index kPairs = 64;
  for (const double deviation : {0.01, 0.1, 1.0, 5.0, 20.0, 100.0}) {
    for (const Index U : {1, 32, 256, 1000}) {
      if (!is_thorough() && U > 256) continue;
      for (const Index D : {1, 16}) {  // D = 1: projections are exact
        Tensor v = normal(Dims(U), 5);
        for (float& x : v.values<float>()) x = std::fabs(x);
        Tensor wq = normal({U, D}, 3), wk = normal({U, D}, 4);
        for (Tensor* w : {&wq, &wk}) {
          for (float& x : w->values<float>()) {
            x *= static_cast<float>(deviation / std::sqrt(static_cast<double>(D)));
          }
        }
        double size = 0;
        for (const double x : values_of(v)) size += x;
        const Tensor q = rows(kPairs, D, 1), k = rows(kPairs, D, 2);
        const Additive score{wq, wk, v};
        const auto truth = scores_of_pairs(DType::kFloat64, q, k, score, by_reference);
        const double direct =
            largest_difference(scores_of_pairs(DType::kFloat32, q, k, score, by_reference), truth);
        const double error =
            largest_difference(scores_of_pairs(DType::kFloat32, q, k, score, by_kernel), truth);
        EXPECT_LE(error, 2 * direct + kScoreError * size)
            << "deviation " << deviation << ", U " << U << ", D " << D << "; tanh directly "
            << direct;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, AdditivePrecision, testing::Values(Place::kEmulator, Place::kDevice),
                         [](const auto& place) { return name_of(place.param); });

}  // namespace
}  // namespace qkv::test
