// SPDX-License-Identifier: Apache-2.0
// Tests modes, dropout and bits: which arguments a layer's result depends on, and which it does
// not.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/support.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// The bytes of several results.
using Bits = std::vector<std::vector<std::uint8_t>>;

// Returns out and the gradients of q, k, v and the parameters, as bytes, of one training or
// evaluation pass with q = k = v = x of [B,T,width].
template <class Layer>
Bits bits_of(const Layer& layer, const Tensor& x, RunState& run, Context& context) {
  typename Layer::Saved saved;
  Tensor out(x.dtype(), x.shape());
  Tensor dq(x.dtype(), x.shape());
  Tensor dk(x.dtype(), x.shape());
  Tensor dv(x.dtype(), x.shape());
  const Tensor dy = random_tensor(x.dtype(), x.shape(), 99);
  auto gradients = layer.zero_gradients();
  layer.forward({x, x, x}, run, saved, {.out = out}, context);
  layer.backward(saved, {.out = dy}, {.q = dq, .k = dk, .v = dv}, gradients, context);
  return {bytes_of(out), bytes_of(dq), bytes_of(dk), bytes_of(dv), all_bytes(gradients)};
}

Bits bits_of(const SelfAttention& layer, const Tensor& x, RunState& run, Context& context) {
  SelfAttention::Saved saved;
  Tensor out(x.dtype(), x.shape());
  Tensor dx(x.dtype(), x.shape());
  const Tensor dy = random_tensor(x.dtype(), x.shape(), 99);
  auto gradients = layer.zero_gradients();
  layer.forward({x}, run, saved, {.out = out}, context);
  layer.backward(saved, {.out = dy}, {.x = dx}, gradients, context);
  return {bytes_of(out), bytes_of(dx), all_bytes(gradients)};
}

// Calls f(layer without dropout, the layer with dropout 0.4) for every layer that has dropout.
template <class F>
void for_each_dropout_layer(Index width, const F& f) {
  f(DotProductAttention(), DotProductAttention(0.4));
  const auto pair = [&](auto plain, auto dropping) {
    initialise(plain, 1);
    initialise(dropping, 1);
    f(plain, dropping);
  };
  pair(AdditiveAttention(width, width, 5), AdditiveAttention(width, width, 5, 0.4));
  pair(BilinearAttention(width, width), BilinearAttention(width, width, 0.4));
  for (const HeadForm form : {HeadForm::kSplit, HeadForm::kWide}) {
    pair(MultiHeadAttention({.width = width, .heads = 2, .form = form, .dropout = 0}),
         MultiHeadAttention({.width = width, .heads = 2, .form = form, .dropout = 0.4}));
  }
}

TEST(LayerModes, EvaluationHasNoDropoutAndTakesNoStep) {
  const Tensor x = random_tensor(DType::kFloat32, {2, 9, 6}, 1);
  Context context;
  for_each_dropout_layer(6, [&](const auto& plain, const auto& dropping) {
    RunState run{Mode::kEvaluate, 5, 17};
    EXPECT_EQ(bits_of(dropping, x, run, context), bits_of(plain, x, run, context));
    EXPECT_EQ(run.step, 17U);
  });
}

TEST(LayerModes, TrainingDrawsFromSeedAndStepAndAdvances) {
  const Tensor x = random_tensor(DType::kFloat32, {2, 9, 6}, 1);
  Context context;
  for_each_dropout_layer(6, [&](const auto& plain, const auto& dropping) {
    const auto pass = [&](std::uint64_t seed, std::uint64_t step) {
      RunState run{Mode::kTrain, seed, step};
      Bits bits = bits_of(dropping, x, run, context);
      EXPECT_EQ(run.step, step + 1);
      EXPECT_EQ(run.seed, seed);
      return bits;
    };
    const Bits first = pass(5, 17);
    EXPECT_EQ(pass(5, 17), first);
    EXPECT_NE(pass(5, 18)[0], first[0]);
    EXPECT_NE(pass(6, 17)[0], first[0]);
    RunState evaluation;
    EXPECT_NE(bits_of(plain, x, evaluation, context)[0], first[0]);
  });
}

TEST(LayerModes, DropoutIsThatOfAttentionWithTheDerivedSeed) {
  const Tensor x = random_tensor(DType::kFloat32, {2, 9, 6}, 1);
  RunState run{Mode::kTrain, 5, 17};
  const std::uint64_t seed = dropout_seed(run);
  Tensor out(DType::kFloat32, x.shape());
  Tensor want(DType::kFloat32, x.shape());
  DotProductAttention::Saved saved;
  DotProductAttention(0.4).forward({x, x, x}, run, saved, {.out = out});
  attention({x, x, x}, {.dropout = {0.4, seed}}, {.out = want});
  EXPECT_EQ(bytes_of(out), bytes_of(want));
}

TEST(LayerModes, SplitFormDropsATenthUnlessToldOtherwise) {
  EXPECT_EQ(MultiHeadAttention({.width = 4, .heads = 2}).config().dropout, 0.1);
  EXPECT_EQ(MultiHeadAttention({.width = 4, .heads = 2, .form = HeadForm::kWide}).config().dropout,
            0);
  // The default probability is used: dropped weights are 0, about one in ten.
  MultiHeadAttention layer({.width = 4, .heads = 2});
  initialise(layer, 1);
  const Tensor x = random_tensor(DType::kFloat32, {1, 64, 4}, 1);
  Tensor out(DType::kFloat32, x.shape());
  Tensor dropped(DType::kFloat32, {1, 2, 64, 64});
  RunState run{Mode::kTrain, 3, 0};
  MultiHeadAttention::Saved saved;
  layer.forward({x, x, x}, run, saved, {.out = out, .dropped_weights = View(dropped)});
  double zeros = 0;
  for (float w : dropped.values<float>()) zeros += w == 0 ? 1 : 0;
  const double n = 2 * 64 * 64;
  EXPECT_NEAR(zeros / n, 0.1, 4 * std::sqrt(0.1 * 0.9 / n));
}

// ---- bits -----------------------------------------------------------------------------------

template <class Layer>
void expect_same_bits_for_any_threads(const Layer& layer, const std::string& name) {
  // The 3 * 70 rows take several tasks and more than one gradient block of 128 rows.
  const Tensor x = random_tensor(DType::kFloat32, {3, 70, 12}, 1);
  const auto bits = [&](int threads) {
    Context context(Executor::threads(threads));
    RunState run{Mode::kTrain, 5, 17};
    return bits_of(layer, x, run, context);
  };
  const Bits want = bits(1);
  for (const int threads : {2, 7}) {
    EXPECT_EQ(bits(threads), want) << name << " on " << threads << " threads";
  }
}

TEST(LayerBits, DoNotDependOnThreads) {
  for_each_dropout_layer(12, [](const auto& plain, const auto& dropping) {
    expect_same_bits_for_any_threads(plain, "plain");
    expect_same_bits_for_any_threads(dropping, "dropping");
  });
  SelfAttention self(12);
  initialise(self, 1);
  expect_same_bits_for_any_threads(self, "SelfAttention");
}

TEST(LayerBits, OfABatchEntryDoNotDependOnTheOthers) {
  MultiHeadAttention layer({.width = 12, .heads = 3});
  initialise(layer, 1);
  const Tensor x = random_tensor(DType::kFloat32, {3, 7, 12}, 1);
  RunState run;
  MultiHeadAttention::Saved saved;
  Tensor all(DType::kFloat32, x.shape());
  layer.forward({x, x, x}, run, saved, {.out = all});
  for (Index b = 0; b < 3; ++b) {
    const Tensor entry = contiguous(slice(ConstView(x), 0, b, b + 1));
    Tensor out(DType::kFloat32, entry.shape());
    layer.forward({entry, entry, entry}, run, saved, {.out = out});
    EXPECT_EQ(bytes_of(out), bytes_of(contiguous(slice(ConstView(all), 0, b, b + 1))));
    // The entry is also computed without a batch axis.
    const ConstView flat = reshape(ConstView(entry), {7, 12});
    Tensor flat_out(DType::kFloat32, {7, 12});
    layer.forward({flat, flat, flat}, run, saved, {.out = flat_out});
    EXPECT_EQ(bytes_of(flat_out), bytes_of(out));
  }
}

TEST(LayerBits, DoNotDependOnMemoryOrder) {
  MultiHeadAttention layer({.width = 6, .heads = 3});
  initialise(layer, 1);
  const Tensor x = random_tensor(DType::kFloat32, {2, 7, 6}, 1);
  const Tensor stored = contiguous(permute(ConstView(x), {2, 1, 0}));
  const ConstView strided = permute(ConstView(stored), {2, 1, 0});
  RunState run{Mode::kTrain, 1, 1};
  RunState again = run;
  MultiHeadAttention::Saved saved;
  Tensor want(DType::kFloat32, x.shape());
  Tensor out(DType::kFloat32, {6, 7, 2});
  layer.forward({x, x, x}, run, saved, {.out = want});
  layer.forward({strided, strided, strided}, again, saved, {.out = permute(out.view(), {2, 1, 0})});
  EXPECT_EQ(bytes_of(contiguous(permute(ConstView(out), {2, 1, 0}))), bytes_of(want));
}

// ---- sizes of 0, reuse ----------------------------------------------------------------------

TEST(LayerEdges, EmptyArraysGiveEmptyResultsAndZeroGradients) {
  for (const HeadForm form : {HeadForm::kSplit, HeadForm::kWide}) {
    MultiHeadAttention layer({.width = 4, .heads = 2, .form = form});
    initialise(layer, 1);
    for (const Dims& sizes : {Dims{0, 3, 3}, Dims{2, 0, 3}, Dims{2, 3, 0}}) {  // B, Tq, Tk
      const Tensor q = random_tensor(DType::kFloat32, {sizes[0], sizes[1], 4}, 1);
      const Tensor k = random_tensor(DType::kFloat32, {sizes[0], sizes[2], 4}, 2);
      Tensor out(DType::kFloat32, q.shape());
      Tensor dq = random_tensor(DType::kFloat32, q.shape(), 3);
      Tensor dk = random_tensor(DType::kFloat32, k.shape(), 3);
      RunState run{Mode::kTrain, 1, 1};
      MultiHeadAttention::Saved saved;
      auto gradients = layer.zero_gradients();
      for_each_parameter(layer, gradients, [](const auto&, Tensor& gradient) {
        std::ranges::fill(gradient.values<float>(), 7.0F);
      });
      layer.forward({q, k, k}, run, saved, {.out = out});
      layer.backward(saved, {.out = out}, {.q = dq, .k = dk}, gradients);
      for (float value : dq.values<float>()) EXPECT_EQ(value, 0);
      for (float value : dk.values<float>()) EXPECT_EQ(value, 0);
      const bool no_keys = sizes[2] == 0;  // then only the last projection's bias has a gradient
      for_each_parameter(layer, gradients, [&](const auto& p, Tensor& gradient) {
        if (no_keys && &gradient == &gradients.o.bias) return;
        for (float value : gradient.values<float>()) EXPECT_EQ(value, 0) << p.name;
      });
      if (no_keys) {
        const auto bias = layer.parameters().o.bias.values<float>();
        for (std::size_t n = 0; n < out.values<float>().size(); ++n) {
          EXPECT_EQ(out.values<float>()[n], bias[n % 4]);
        }
        for (std::size_t n = 0; n < bias.size(); ++n) {  // the sum over the six rows of dout
          EXPECT_FLOAT_EQ(gradients.o.bias.values<float>()[n], 6 * bias[n]);
        }
      }
    }
  }
}

TEST(LayerEdges, SavedMayBeUsedAgainForOtherShapes) {
  MultiHeadAttention layer({.width = 4, .heads = 2});
  initialise(layer, 1);
  MultiHeadAttention::Saved used;
  for (const Index length : {5, 3, 8}) {
    const Tensor x = random_tensor(DType::kFloat32, {2, length, 4}, 1);
    const Tensor dy = random_tensor(DType::kFloat32, {2, length, 4}, 2);
    const auto gradient = [&](MultiHeadAttention::Saved& saved) {
      RunState run{Mode::kTrain, 1, 1};
      Tensor out(DType::kFloat32, x.shape());
      Tensor dx(DType::kFloat32, x.shape());
      auto gradients = layer.zero_gradients();
      layer.forward({x, x, x}, run, saved, {.out = out});
      layer.backward(saved, {.out = dy}, {.q = dx, .k = dx, .v = dx}, gradients);
      return bytes_of(dx);
    };
    MultiHeadAttention::Saved fresh;
    EXPECT_EQ(gradient(used), gradient(fresh)) << "length " << length;
  }
}

}  // namespace
}  // namespace qkv::test
