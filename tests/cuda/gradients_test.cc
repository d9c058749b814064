// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/storage.h"
#include "tests/attention/backward_call.h"
#include "tests/attention/conformance.h"
#include "tests/attention/largest.h"
#include "tests/attention/paths.h"
#include "tests/cuda/emulated_attention.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/gradient_calls.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"

// Compares the gradient kernels of src/cuda in the emulator with the reference.
namespace qkv::test {
namespace {

constexpr const char* kPath = "cuda";
constexpr const char* kProgram = "test_cuda";

class EmulatedGradients : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = why_no_emulator();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  // Compares the `calls` random calls of part GetParam() with the reference.
  void compare(decltype(for_each_gradient_call)& for_each, std::uint64_t seed, int calls,
               std::string_view covered, std::string_view asked = {}) {
    Findings findings;
    const auto check = [&](std::uint64_t first, std::uint64_t index, bool) {
      for_each(first, index, [&](const BackwardCall& call, const RandomBackward& random) {
        findings.count(kPath, features_of(call, random));
        const std::string difference = difference_of_gradients(
            call, random, Place::kEmulator,
            [&](const Saved& saved, const InputGradients& gradients) {
              emulated_backward(call.inputs, call.options, saved, call.sources, gradients,
                                static_cast<std::uint32_t>(index));
            });
        if (difference.empty()) return;
        findings.tell(kPath, difference,
                      replay_of(random.describe(), first, index, "*EmulatedGradients*0", kProgram));
      });
    };
    if (!run_part(seed, GetParam(), calls, findings, check)) return;
    for (const std::string_view features : {covered, asked}) {
      if (!features.empty()) findings.expect_met(kPath, features, is_thorough() ? 2 : 0, false);
    }
  }
};

TEST_P(EmulatedGradients, AgreeWithTheReference) {
  compare(for_each_gradient_call, 1, at_scale(600, 6), kCoveredOfGradients);
}

TEST_P(EmulatedGradients, OfAdditiveScoresAgreeWithTheReference) {
  compare(for_each_additive_gradient_call, 3, at_scale(3000, 150), kCoveredOfFloatGradients,
          kAskedOfAdditive);
}

TEST_P(EmulatedGradients, OfFloat32AgreeWithTheReference) {
  compare(for_each_float_gradient_call, 4, at_scale(3000, 150), kCoveredOfFloatGradients);
}

// Returns the weight of the first of `count` keys, which is equal for 4 queries. It is computed
// from an lse over 8 keys, and over a sink if `has_sink`. All scores and the sink are `size`.
// Because dout is 1, dv is the sum of the weights of the 4 queries.
double weight_from_lse(double size, Index count, bool has_sink) {
  const Guarded q(DType::kBFloat16, {1, 1, 4, 8}, Layout::kContiguous);
  const Guarded k(DType::kBFloat16, {1, 1, 8, 8}, Layout::kContiguous);
  Guarded dout(DType::kBFloat16, {1, 1, 4, 8}, Layout::kContiguous);
  dout.fill(std::vector<double>(32, 1));
  Guarded bias(DType::kFloat32, {4, 8}, Layout::kContiguous);
  bias.fill(std::vector<double>(32, size));
  Guarded sinks(DType::kFloat32, {1}, Layout::kContiguous);
  sinks.fill(std::vector<double>(1, size));
  BackwardCall call{.inputs = {q.view(), k.view(), k.view()},
                    .options = {.bias = bias.view()},
                    .sources = {.out = dout.view()}};
  if (has_sink) call.options.sinks = sinks.view();
  const SavedTensors saved(call, kReferencePath);
  const View some = slice(k.view(), 2, 0, count);
  call.inputs = {q.view(), some, some};
  call.options.bias = slice(bias.view(), 1, 0, count);
  call.ask("v", Layout::kContiguous);
  const Gradients got(call);
  emulated_backward(call.inputs, call.options, saved.views(), call.sources, got.views());
  return values_of(got.arrays().at("v").view())[0] / 4;
}

// An lse of 3e6 is rounded to a multiple of 1/4.
TEST(EmulatedGradientEdges, WeightsOfALargeLseAddUpToOneUnlessItCoversMoreKeys) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  for (const double size : {0.0, 20.0, -300.0, 3e6, -3e6}) {
    EXPECT_NEAR(weight_from_lse(size, 8, false), 1.0 / 8, 1e-3) << size;
    EXPECT_NEAR(weight_from_lse(size, 8, true), 1.0 / 9, 1e-3) << size;
    if (std::abs(size) > 1e6) continue;
    EXPECT_NEAR(weight_from_lse(size, 4, false), 1.0 / 8, 1e-3) << size;
  }
}

// A soft-cap makes an infinite score finite, with derivative 0. Query 3 has an infinite channel and
// sees all keys, so the gradient of each key is 0 * infinity in this channel, and a number in the
// others.
TEST(EmulatedGradientEdges, InfinitiesUnderASoftCapReachTheirChannelOnly) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Random random(3);
    Guarded q(dtype, {1, 1, 4, 8}, Layout::kContiguous);
    Guarded k(dtype, {1, 1, 4, 8}, Layout::kContiguous);
    Guarded dout(dtype, {1, 1, 4, 8}, Layout::kContiguous);
    for (Guarded* x : {&q, &dout}) x->fill_normal(random);
    k.fill(std::vector<double>(32, 1));
    core::store(dtype, q.view().data(), 3 * 8 + 5, std::numeric_limits<double>::infinity());
    BackwardCall call{.inputs = {q.view(), k.view(), k.view()},
                      .options = {.softcap = 5, .masks = {Causal{}}},
                      .sources = {.out = dout.view()}};
    for (const char* name : {"q", "k", "v"}) call.ask(name, Layout::kContiguous);
    const SavedTensors saved(call, kReferencePath);
    const Gradients got(call);
    emulated_backward(call.inputs, call.options, saved.views(), call.sources, got.views());
    const std::vector<double> dk = values_of(got.arrays().at("k").view());
    for (std::size_t n = 0; n < dk.size(); ++n) EXPECT_EQ(std::isnan(dk[n]), n % 8 == 5) << n;
    for (const char* name : {"q", "v"}) {
      for (const double x : values_of(got.arrays().at(name).view())) {
        EXPECT_TRUE(std::isfinite(x)) << name;
      }
    }
  }
}

// In a row without unmasked keys the sink has weight 1, and its gradient gets dlse whatever dout
// is, because out is 0. The keys' sum of exponentials is 0 in such a row, but not in a row whose
// keys have small weights.
TEST(EmulatedGradientEdges, OfSinksOfRowsWithoutKeys) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double size : {0.0, 3.0, 40.0, -300.0, kNan}) {
    const Guarded q(DType::kBFloat16, {1, 2, 4, 8}, Layout::kContiguous);
    Guarded v(DType::kBFloat16, {1, 2, 4, 8}, Layout::kContiguous);
    v.fill(std::vector<double>(64, 0.5));
    Guarded dout(DType::kBFloat16, {1, 2, 4, 8}, Layout::kContiguous);
    std::vector<double> numbers(64, 1);
    for (std::size_t n = 0; n < 8; ++n) numbers[n] = kNan;  // of query 0 of head 0
    dout.fill(numbers);
    Guarded dlse(DType::kFloat32, {1, 2, 4}, Layout::kContiguous);
    dlse.fill(std::vector<double>{3, 5, 7, 9, 3, 5, 7, 9});
    Guarded sinks(DType::kFloat32, {2}, Layout::kContiguous);
    sinks.fill(std::vector<double>(2, size));
    Guarded lengths(DType::kInt32, {1, 4}, Layout::kContiguous);
    lengths.fill(std::vector<double>{0, 4, 0, 2});
    BackwardCall call{.inputs = {q.view(), q.view(), v.view()},
                      .options = {.masks = {KeyLengths{lengths.view()}}, .sinks = sinks.view()},
                      .sources = {.out = dout.view(), .lse = dlse.view()}};
    call.ask("sinks", Layout::kContiguous);
    const SavedTensors saved(call, kReferencePath);
    const Gradients want(call), got(call);
    run_backward(call, kReferencePath, saved.views(), want);
    emulated_backward(call.inputs, call.options, saved.views(), call.sources, got.views());
    for (std::size_t h = 0; h < 2; ++h) {
      const double expected = values_of(want.arrays().at("sinks").view())[h];
      const double number = values_of(got.arrays().at("sinks").view())[h];
      if (std::isnan(size)) {
        EXPECT_TRUE(std::isnan(expected) && std::isnan(number)) << h;
      } else {
        EXPECT_NEAR(number, expected, 1e-5) << size << " " << h;
      }
    }
  }
}

// A bias is added after the soft-cap, whose derivative is therefore no factor of dbias. Batch
// entries and heads may share a matrix of the bias.
TEST(EmulatedGradientEdges, OfBiasesOfAnyShape) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  Random random(5);
  Guarded q(DType::kBFloat16, {2, 3, 2, 20, 16}, Layout::kContiguous);
  Guarded k(DType::kBFloat16, {2, 3, 2, 30, 16}, Layout::kContiguous);
  Guarded dout(DType::kBFloat16, {2, 3, 2, 20, 16}, Layout::kContiguous);
  for (Guarded* x : {&q, &k, &dout}) x->fill_normal(random);
  for (const Dims& leading :
       {Dims{2, 3, 2}, Dims{2, 1, 2}, Dims{1, 3, 1}, Dims{3, 2}, Dims{2}, Dims{}}) {
    Dims shape = leading;
    for (const Index size : {20, 30}) shape.push_back(size);
    Guarded bias(DType::kFloat32, shape, Layout::kContiguous);
    bias.fill_normal(random);
    BackwardCall call{.inputs = {q.view(), k.view(), k.view()},
                      .options = {.softcap = 0.5, .bias = bias.view()},
                      .sources = {.out = dout.view()}};
    call.ask("bias", Layout::kContiguous);
    const SavedTensors saved(call, kReferencePath);
    const Gradients want(call);
    run_backward(call, kReferencePath, saved.views(), want);
    const std::vector<double> expected = values_of(want.arrays().at("bias").view());
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
      const double before = write == Write::kAccumulate ? 3 : 0;
      Guarded got(DType::kFloat32, shape, Layout::kContiguous);
      got.fill(std::vector<double>(expected.size(), 3));
      emulated_backward(call.inputs, call.options, saved.views(), call.sources,
                        {.bias = got.view(), .write = write});
      const std::vector<double> numbers = values_of(got.view());
      for (std::size_t n = 0; n < numbers.size(); ++n) {
        EXPECT_NEAR(numbers[n], before + expected[n], 0.02) << to_string(shape) << " " << n;
      }
    }
  }
}

// Returns dsinks for one query whose keys have the first `keys` of `scores`, from `lse` and a dlse
// of 1.
double sink_gradient(const std::vector<double>& scores, Index keys, double sink, double lse) {
  const Guarded q(DType::kBFloat16, {1, 1, 1, 8}, Layout::kContiguous);
  const auto count = static_cast<Index>(scores.size());
  const Guarded k(DType::kBFloat16, {1, 1, count, 8}, Layout::kContiguous);
  Guarded bias(DType::kFloat32, {1, count}, Layout::kContiguous);
  bias.fill(scores);
  Guarded sinks(DType::kFloat32, {1}, Layout::kContiguous);
  sinks.fill(std::vector<double>{sink});
  Guarded saved(DType::kFloat32, {1, 1, 1}, Layout::kContiguous);
  saved.fill(std::vector<double>{lse});
  Guarded dlse(DType::kFloat32, {1, 1, 1}, Layout::kContiguous);
  dlse.fill(std::vector<double>{1});
  const Guarded got(DType::kFloat32, {1}, Layout::kContiguous);
  const View some = slice(k.view(), 2, 0, keys);
  emulated_backward({q.view(), some, some},
                    {.bias = slice(bias.view(), 1, 0, keys), .sinks = sinks.view()},
                    {.lse = saved.view()}, {.lse = dlse.view()}, {.sinks = got.view()});
  return values_of(got.view())[0];
}

// The lse may cover more keys than the call has. The weight of the sink is exp(sink - lse), however
// far the call's own scores lie from both, and 0 if that is below 2^-72.
TEST(EmulatedGradientEdges, OfSinksFarFromTheScores) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  const double lse = 101 + std::log(1 + std::exp(-1));
  EXPECT_NEAR(sink_gradient({0, 101}, 1, 100, lse), std::exp(100 - lse), 1e-4);
  EXPECT_NEAR(sink_gradient({0, 101}, 2, 100, lse), std::exp(100 - lse), 1e-4);
  EXPECT_NEAR(sink_gradient({0}, 1, 0, std::log(2)), 0.5, 1e-6);
  EXPECT_EQ(sink_gradient({0}, 1, -60, 0), 0);
  EXPECT_NE(sink_gradient({0}, 1, -49, 0), 0);
}

// Heads that share Wq and Wk by a stride of 0 have gradients of their own.
TEST(EmulatedGradientEdges, OfExpandedParameters) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  Random random(9);
  Guarded q(DType::kFloat32, {2, 4, 9, 5}, Layout::kContiguous);
  Guarded k(DType::kFloat32, {2, 2, 7, 5}, Layout::kContiguous);
  Guarded w(DType::kFloat32, {3, 5}, Layout::kContiguous);
  Guarded v(DType::kFloat32, {3}, Layout::kContiguous);
  Guarded dout(DType::kFloat32, {2, 4, 9, 5}, Layout::kContiguous);
  for (Guarded* x : {&q, &k, &w, &v, &dout}) x->fill_normal(random);
  const ConstView shared(w.view().data(), DType::kFloat32, {4, 3, 5}, {0, 5, 1});
  BackwardCall call{.inputs = {q.view(), k.view(), k.view()},
                    .options = {.score = Additive{shared, shared, v.view()}},
                    .sources = {.out = dout.view()}};
  for (const char* name : {"q", "k", "v", "wq", "wk", "score_v"}) {
    call.ask(name, Layout::kContiguous);
  }
  const SavedTensors saved(call, kReferencePath);
  const Gradients want(call), got(call);
  run_backward(call, kReferencePath, saved.views(), want);
  emulated_backward(call.inputs, call.options, saved.views(), call.sources, got.views());
  for (const auto& [name, array] : want.arrays()) {
    EXPECT_LE(largest_difference(values_of(got.arrays().at(name).view()), values_of(array.view())),
              1e-5)
        << name;
  }
}

// A bias that no query reads, because there are no batch entries or heads, has a gradient of 0.
TEST(EmulatedGradientEdges, OfABiasWithoutReaders) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  for (const Dims& leading : {Dims{0, 2}, Dims{2, 0}}) {
    Dims shape = leading;
    for (const Index size : {20, 8}) shape.push_back(size);
    const Guarded q(DType::kBFloat16, shape, Layout::kContiguous);
    const Guarded bias(DType::kFloat32, {1, 1, 20, 20}, Layout::kContiguous);
    Guarded got(DType::kFloat32, {1, 1, 20, 20}, Layout::kContiguous);
    got.fill(std::vector<double>(400, 7));
    BackwardCall call{.inputs = {q.view(), q.view(), q.view()},
                      .options = {.bias = bias.view()},
                      .sources = {.out = q.view()}};
    const SavedTensors saved(call, kReferencePath);
    emulated_backward(call.inputs, call.options, saved.views(), call.sources, {.bias = got.view()});
    EXPECT_EQ(values_of(got.view()), std::vector<double>(400, 0)) << to_string(leading);
  }
}

INSTANTIATE_TEST_SUITE_P(Part, EmulatedGradients, testing::Range(0, kParts));

}  // namespace
}  // namespace qkv::test
