// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/attention.h>
#include <qkv/expression.h>
#include <qkv/layers.h>

#include "tests/layers/gradients.h"
#include "tests/layers/support.h"

namespace qkv::test {
namespace {

// Layers are checked in evaluation and in training, at one fixed step.
const std::vector<RunState>& runs() {
  static const std::vector<RunState> both{{Mode::kEvaluate, 0, 0}, {Mode::kTrain, 11, 3}};
  return both;
}
std::string replay(const RunState& run) {
  return run.mode == Mode::kTrain ? "training, seed 11, step 3" : "evaluation";
}

struct Shapes {
  Dims q, k, v, out, weights;
};

// Checks the gradients of a layer's q, k and v and of all its parameters.
template <class Layer>
void check(Layer& layer, const Shapes& shapes, const std::vector<Mask>& masks,
           const ConstView& lengths = {}, const std::vector<ScoreMod>& mods = {}) {
  for (const RunState& run : runs()) {
    Tensor q = random_tensor(kF64, shapes.q, 1);
    Tensor k = random_tensor(kF64, shapes.k, 2);
    Tensor v = random_tensor(kF64, shapes.v, 3);
    LayerInputs inputs{q, k, v, lengths, masks};
    inputs.mods = mods;
    LayerLoss loss(layer, inputs, run, shapes.out, shapes.weights);
    Tensor dq(kF64, shapes.q);
    Tensor dk(kF64, shapes.k);
    Tensor dv(kF64, shapes.v);
    auto gradients = layer.zero_gradients();
    loss.backward(LayerInputGradients{.q = dq, .k = dk, .v = dv}, gradients);

    expect_gradients({{"q", q, dq}, {"k", k, dk}, {"v", v, dv}}, layer, gradients, loss,
                     replay(run));
  }
}

TEST(LayerGradients, DotProduct) {
  DotProductAttention layer(0.3);
  std::vector<std::int64_t> lengths{2, 5};
  check(layer, {{2, 3, 4}, {2, 5, 4}, {2, 5, 6}, {2, 3, 6}, {2, 3, 5}}, {}, lengths);
}

TEST(LayerGradients, Additive) {
  AdditiveAttention layer(4, 3, 7, 0.3, kF64);
  initialise(layer, 1);
  std::vector<std::int64_t> lengths{2, 5};
  check(layer, {{2, 3, 4}, {2, 5, 3}, {2, 5, 6}, {2, 3, 6}, {2, 3, 5}}, {}, lengths);
}

TEST(LayerGradients, AdditiveWithHeads) {
  AdditiveAttention layer(4, 3, 5, 0.3, kF64);
  initialise(layer, 1);
  check(layer, {{2, 4, 3, 4}, {2, 2, 3, 3}, {2, 2, 3, 2}, {2, 4, 3, 2}, {2, 4, 3, 3}}, {Causal{}});
}

TEST(LayerGradients, Bilinear) {
  BilinearAttention layer(4, 3, 0.3, kF64);
  initialise(layer, 2);
  check(layer, {{2, 3, 4}, {2, 5, 3}, {2, 5, 6}, {2, 3, 6}, {2, 3, 5}}, {Causal{}});
}

TEST(LayerGradients, MultiHeadSplitCrossAttention) {
  MultiHeadAttention layer({.width = 6, .heads = 2, .dropout = 0.3, .dtype = kF64});
  initialise(layer, 3);
  std::vector<std::uint8_t> padding{0, 0, 0, 1, 1, 0, 0, 0, 0, 0};
  const Padding mask{ConstView(padding.data(), {2, 5})};
  check(layer, {{2, 3, 6}, {2, 5, 6}, {2, 5, 6}, {2, 3, 6}, {2, 2, 3, 5}}, {mask});
}

TEST(LayerGradients, MultiHeadWideCrossAttention) {
  MultiHeadAttention layer(
      {.width = 3, .heads = 4, .form = HeadForm::kWide, .dropout = 0.3, .dtype = kF64});
  initialise(layer, 4);
  check(layer, {{2, 3, 3}, {2, 5, 3}, {2, 5, 3}, {2, 3, 3}, {2, 4, 3, 5}}, {Causal{}});
}

// Leading axes broadcast: [2,2] of q, [2] of k and [1] of v.
TEST(LayerGradients, MultiHeadOverBroadcastBatches) {
  MultiHeadAttention layer({.width = 4, .heads = 2, .dropout = 0.3, .dtype = kF64});
  initialise(layer, 5);
  check(layer, {{2, 2, 3, 4}, {2, 5, 4}, {1, 5, 4}, {2, 2, 3, 4}, {2, 2, 2, 3, 5}}, {});
}

TEST(LayerGradients, MultiHeadOfRankTwo) {
  MultiHeadAttention layer({.width = 4, .heads = 2, .dropout = 0.3, .dtype = kF64});
  initialise(layer, 6);
  check(layer, {{3, 4}, {5, 4}, {5, 4}, {3, 4}, {1, 2, 3, 5}}, {Causal{}});
}

// The layer has different widths, fewer key heads, and a sink for each head.
TEST(LayerGradients, MultiHeadOfOtherWidths) {
  MultiHeadAttention layer({.width = 8,
                            .heads = 4,
                            .dropout = 0.3,
                            .dtype = kF64,
                            .bias = false,
                            .key_width = 5,
                            .value_width = 3,
                            .key_heads = 2,
                            .sinks = true});
  initialise(layer, 9);
  EXPECT_EQ(layer.parameters().k.weight.shape(), Dims(4, 5));
  EXPECT_EQ(layer.parameters().v.weight.shape(), Dims(4, 3));
  check(layer, {{2, 3, 8}, {2, 5, 5}, {2, 5, 3}, {2, 3, 8}, {2, 4, 3, 5}}, {Causal{}});
}

TEST(LayerGradients, MultiHeadWithALearnedKey) {
  for (const bool zero_attn : {false, true}) {
    MultiHeadAttention layer({.width = 4,
                              .heads = 2,
                              .dropout = 0.3,
                              .dtype = kF64,
                              .key_heads = 1,
                              .bias_kv = true,
                              .zero_attn = zero_attn});
    initialise(layer, 10);
    std::vector<std::uint8_t> padding{0, 1, 0, 0, 0, 0, 0, 0, 0, 1};
    std::vector<std::int64_t> lengths{4, 5};
    const Padding mask{ConstView(padding.data(), {2, 5})};
    check(layer, {{2, 3, 4}, {2, 5, 4}, {2, 5, 4}, {2, 3, 4}, {2, 2, 3, 6}}, {Causal{}, mask},
          lengths);
  }
}

// The bias broadcasts along heads, batch entries, keys or all axes. Its gradient is overwritten and
// accumulated.
TEST(LayerGradients, MultiHeadBias) {
  for (const bool bias_kv : {false, true}) {
    for (const Dims& shape : {Dims(2, 1, 3, 5), Dims(3, 5), Dims(2, 3, 1), Dims(1)}) {
      MultiHeadAttention layer({.width = 4, .heads = 2, .dtype = kF64, .bias_kv = bias_kv});
      initialise(layer, 11);
      Tensor q = random_tensor(kF64, {2, 3, 4}, 1);
      Tensor k = random_tensor(kF64, {2, 5, 4}, 2);
      Tensor bias = random_tensor(kF64, shape, 3);
      LayerInputs inputs{q, k, k, {}, {Window{1, 2}}, bias, TopLeft{}};
      LayerLoss loss(layer, inputs, {}, {2, 3, 4}, {2, 2, 3, 5 + bias_kv});
      Tensor dbias(kF64, shape);
      auto gradients = layer.zero_gradients();
      loss.backward(LayerInputGradients{.bias = dbias}, gradients);
      // A bias that is equal for all keys changes lse, and weights only if there is a learned key.
      expect_gradient({"bias", bias, dbias}, loss, to_string(shape));
      Tensor twice = contiguous(dbias);
      loss.backward(LayerInputGradients{.write = Write::kAccumulate, .bias = twice}, gradients);
      for (std::size_t n = 0; n < dbias.values<double>().size(); ++n) {
        EXPECT_EQ(twice.values<double>()[n], 2 * dbias.values<double>()[n]);
      }
    }
  }
}

// The score mod depends on query, head and key, and so does the mask.
TEST(LayerGradients, ScoreModsAndMaskMods) {
  const Symbols x;
  const std::vector<ScoreMod> mods{score_mod(x.s * (1 + x.i - 0.5 * x.h) + 0.25 * x.j * x.s * x.s)};
  const std::vector<Mask> masks{mask_mod((x.i + x.j + x.h) % 3 != 0)};
  DotProductAttention dot(0.3);
  check(dot, {{2, 3, 4}, {2, 5, 4}, {2, 5, 6}, {2, 3, 6}, {2, 3, 5}}, masks, {}, mods);
  MultiHeadAttention heads({.width = 6, .heads = 2, .dropout = 0.3, .dtype = kF64});
  initialise(heads, 3);
  check(heads, {{2, 3, 6}, {2, 5, 6}, {2, 5, 6}, {2, 3, 6}, {2, 2, 3, 5}}, masks, {}, mods);
  SelfAttention self(5, kF64);
  initialise(self, 7);
  Tensor from = random_tensor(kF64, {2, 4, 5}, 1);
  Tensor dx(kF64, {2, 4, 5});
  LayerLoss loss(self, SelfAttentionInputs{from, {}, masks, mods}, {}, {2, 4, 5}, {2, 4, 4});
  auto gradients = self.zero_gradients();
  loss.backward(SelfAttentionInputGradients{.x = dx}, gradients);
  expect_gradients({{"x", from, dx}}, self, gradients, loss, "evaluation");
}

// Checks the gradient of a table that a score mod reads, overwritten and accumulated.
template <class Layer, class Inputs, class InputGradients>
void check_table(Layer& layer, Inputs inputs, const Dims& out, const Dims& weights,
                 const std::string& name) {
  const Symbols x;
  Tensor table = random_tensor(kF64, {2, 9}, 4);
  const Captured read(ConstView(table), "table");
  inputs.mods = {score_mod(x.s + read(x.h, x.j - x.i + 4))};
  LayerLoss<Layer, Inputs> loss(layer, inputs, {Mode::kTrain, 11, 3}, out, weights);
  Tensor dtable(kF64, {2, 9});
  auto gradients = layer.zero_gradients();
  InputGradients to;
  to.captured = {{read, dtable}};
  loss.backward(to, gradients);
  expect_gradient({"table", table, dtable}, loss, name);
  Tensor twice = contiguous(dtable);
  to.captured = {{read, twice}};
  to.write = Write::kAccumulate;
  loss.backward(to, gradients);
  for (std::size_t n = 0; n < dtable.values<double>().size(); ++n) {
    EXPECT_EQ(twice.values<double>()[n], 2 * dtable.values<double>()[n]) << name;
  }
}

TEST(LayerGradients, ArraysThatScoreModsRead) {
  const Tensor q = random_tensor(kF64, {2, 2, 3, 4}, 1), k = random_tensor(kF64, {2, 2, 5, 4}, 2);
  const LayerInputs heads{q, k, k};
  const Dims out{2, 2, 3, 4}, weights{2, 2, 3, 5};
  DotProductAttention dot(0.3);
  check_table<DotProductAttention, LayerInputs, LayerInputGradients>(dot, heads, out, weights,
                                                                     "dot");
  AdditiveAttention additive(4, 4, 6, 0.3, kF64);
  initialise(additive, 3);
  check_table<AdditiveAttention, LayerInputs, LayerInputGradients>(additive, heads, out, weights,
                                                                   "additive");
  BilinearAttention bilinear(4, 4, 0.3, kF64);
  initialise(bilinear, 3);
  check_table<BilinearAttention, LayerInputs, LayerInputGradients>(bilinear, heads, out, weights,
                                                                   "bilinear");
  const Tensor x = random_tensor(kF64, {2, 3, 6}, 1), y = random_tensor(kF64, {2, 5, 6}, 2);
  MultiHeadAttention multi({.width = 6, .heads = 2, .dropout = 0.3, .dtype = kF64});
  initialise(multi, 3);
  check_table<MultiHeadAttention, LayerInputs, LayerInputGradients>(
      multi, LayerInputs{x, y, y}, {2, 3, 6}, {2, 2, 3, 5}, "multi-head");
  SelfAttention self(6, kF64);
  initialise(self, 7);
  check_table<SelfAttention, SelfAttentionInputs, SelfAttentionInputGradients>(
      self, SelfAttentionInputs{x}, {2, 3, 6}, {2, 3, 3}, "self");
}

// A layer with score mods gives the results of attention() with them, not those without.
TEST(LayerGradients, ScoreModsActAsInAttention) {
  const Symbols x;
  const std::vector<ScoreMod> mods{score_mod(x.s - 0.5 * abs(x.i - x.j))};
  const Tensor q = random_tensor(kF64, {2, 3, 4}, 1), k = random_tensor(kF64, {2, 5, 4}, 2);
  Tensor got(kF64, {2, 3, 4}), want(kF64, {2, 3, 4}), without(kF64, {2, 3, 4});
  RunState run;
  DotProductAttention::Saved saved;
  LayerInputs inputs{q, k, k};
  DotProductAttention().forward(inputs, run, saved, {.out = without});
  inputs.mods = mods;
  DotProductAttention().forward(inputs, run, saved, {.out = got});
  attention({q, k, k}, {.mods = mods}, {.out = want});
  EXPECT_EQ(bytes_of(got), bytes_of(want));
  EXPECT_NE(bytes_of(got), bytes_of(without));
}

TEST(LayerGradients, SelfAttention) {
  SelfAttention layer(5, kF64);
  initialise(layer, 7);
  std::vector<std::int64_t> lengths{3, 4};
  Tensor x = random_tensor(kF64, {2, 4, 5}, 1);
  Tensor dx(kF64, {2, 4, 5});
  LayerLoss loss(layer, SelfAttentionInputs{x, lengths, {Causal{}}}, {}, {2, 4, 5}, {2, 4, 4});
  auto gradients = layer.zero_gradients();
  loss.backward(SelfAttentionInputGradients{.x = dx}, gradients);
  expect_gradients({{"x", x, dx}}, layer, gradients, loss, "evaluation");
}

// One array is q, k and v, and one buffer gets the sum of the three gradients.
TEST(LayerGradients, MultiHeadSelfAttentionSumsIntoOneBuffer) {
  for (const HeadForm form : {HeadForm::kSplit, HeadForm::kWide}) {
    for (const RunState& run : runs()) {
      MultiHeadAttention layer(
          {.width = 4, .heads = 2, .form = form, .dropout = 0.3, .dtype = kF64});
      initialise(layer, 8);
      Tensor x = random_tensor(kF64, {2, 4, 4}, 1);
      Tensor dx(kF64, {2, 4, 4});
      LayerLoss loss(layer, LayerInputs{x, x, x, {}, {}}, run, {2, 4, 4}, {2, 2, 4, 4});
      auto gradients = layer.zero_gradients();
      loss.backward(LayerInputGradients{.q = dx, .k = dx, .v = dx}, gradients);
      expect_gradients({{"x", x, dx}}, layer, gradients, loss, replay(run));
    }
  }
}

// ---- requested gradients, and how they are written ------------------------------------------

template <class Layer>
void check_writing(const Layer& layer, const Dims& x_shape, const Dims& weights_shape) {
  const Tensor x = random_tensor(kF64, x_shape, 1);
  const Tensor y = random_tensor(kF64, x_shape, 2);
  LayerLoss loss(layer, LayerInputs{x, y, y, {}, {}}, {}, x_shape, weights_shape);
  const auto run = [&](LayerInputGradients d, typename Layer::Parameters& gradients) {
    loss.backward(d, gradients);
  };
  Tensor dq = random_tensor(kF64, x_shape, 3);  // arbitrary numbers that must be overwritten
  Tensor dk = random_tensor(kF64, x_shape, 4);
  Tensor dv = random_tensor(kF64, x_shape, 5);
  auto all = layer.zero_gradients();
  for_each_parameter(all, [](const auto& p) { fill_normal(p.value, 6); });
  run({dq, dk, dv}, all);

  // A second backward pass that accumulates doubles the gradients.
  Tensor twice_q = contiguous(dq);
  Tensor twice_k = contiguous(dk);
  Tensor twice_v = contiguous(dv);
  auto twice = layer.zero_gradients();
  for_each_parameter(twice, all, [](const auto& p, const Tensor& once) { copy(once, p.value); });
  run({twice_q, twice_k, twice_v, Write::kAccumulate}, twice);
  const auto expect_double = [](const std::string& name, const Tensor& got, const Tensor& once) {
    std::vector<double> want;
    for (double value : once.values<double>()) want.push_back(2 * value);
    EXPECT_TRUE(compare(name, got, want, {}, "accumulate"));
  };
  expect_double("dq", twice_q, dq);
  expect_double("dk", twice_k, dk);
  expect_double("dv", twice_v, dv);
  for_each_parameter(
      twice, all, [&](const auto& p, const Tensor& once) { expect_double(p.name, p.value, once); });

  // A single requested gradient is bit-identical to that of a call that requests all.
  Tensor only_k(kF64, x_shape);
  typename Layer::Parameters none;
  run({.k = only_k}, none);
  EXPECT_EQ(bytes_of(only_k), bytes_of(dk));
  if (parameter_count(layer) == 0) return;
  auto parameters_only = layer.zero_gradients();
  run({}, parameters_only);
  EXPECT_EQ(all_bytes(parameters_only), all_bytes(all));
}

TEST(LayerGradients, AreOverwrittenAddedOrLeftOut) {
  MultiHeadAttention split({.width = 6, .heads = 2, .dtype = kF64});
  initialise(split, 1);
  check_writing(split, {2, 3, 6}, {2, 2, 3, 3});
  MultiHeadAttention learned(
      {.width = 6, .heads = 2, .dtype = kF64, .key_heads = 1, .sinks = true, .bias_kv = true});
  initialise(learned, 1);
  check_writing(learned, {2, 3, 6}, {2, 2, 3, 4});
  MultiHeadAttention wide({.width = 6, .heads = 2, .form = HeadForm::kWide, .dtype = kF64});
  initialise(wide, 1);
  check_writing(wide, {2, 3, 6}, {2, 2, 3, 3});
  AdditiveAttention additive(6, 6, 4, 0, kF64);
  initialise(additive, 1);
  check_writing(additive, {2, 3, 6}, {2, 3, 3});
  BilinearAttention bilinear(6, 6, 0, kF64);
  initialise(bilinear, 1);
  check_writing(bilinear, {2, 3, 6}, {2, 3, 3});
  check_writing(DotProductAttention(), {2, 3, 6}, {2, 3, 3});
}

}  // namespace
}  // namespace qkv::test
