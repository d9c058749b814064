// SPDX-License-Identifier: Apache-2.0
// Tests that an invalid call says which argument broke which rule, and leaves outputs and steps
// unchanged.
#include "tests/support/errors.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/support.h"

namespace qkv::test {
namespace {

TEST(LayerErrors, ConstructorsNameTheArgument) {
  const auto config = [](MultiHeadConfig c) { return [c] { MultiHeadAttention layer(c); }; };
  EXPECT_EQ(message_of(config({.width = 10, .heads = 4})),
            "MultiHeadAttention: heads must divide width in the split form, got 4 heads for width "
            "10");
  EXPECT_EQ(message_of(config({.width = 10, .heads = 4, .form = HeadForm::kWide})), "");
  EXPECT_EQ(message_of(config({.width = 0, .heads = 4})),
            "MultiHeadAttention: width must be at least 1, got 0");
  EXPECT_EQ(message_of(config({.width = 4, .heads = -1})),
            "MultiHeadAttention: heads must be at least 1, got -1");
  EXPECT_EQ(message_of(config({.width = 4, .dtype = DType::kFloat16})),
            "MultiHeadAttention: dtype must be float32 or float64, got float16");
  EXPECT_EQ(
      message_of(config({.width = Index{1} << 40, .heads = 2})),
      "MultiHeadAttention: width must be smaller: parameters may take at most 2^63 - 1 bytes, "
      "got float32 [1099511627776,1099511627776]");
  EXPECT_EQ(message_of([] { DotProductAttention layer(1); }),
            "DotProductAttention: dropout must be in [0,1), got 1");
  EXPECT_NE(message_of([] { BilinearAttention layer(2, 3, -0.1); }), "");
  EXPECT_NE(message_of([] { DotProductAttention layer(std::numeric_limits<double>::quiet_NaN()); }),
            "");
  EXPECT_EQ(message_of([] { AdditiveAttention layer(2, 3, 0); }),
            "AdditiveAttention: units must be at least 1, got 0");
  EXPECT_EQ(message_of([] { SelfAttention layer(0); }),
            "SelfAttention: width must be at least 1, got 0");
}

class MultiHeadErrors : public testing::Test {
 protected:
  MultiHeadErrors() {
    initialise(layer_, 1);
    for (float& value : out_.values<float>()) value = 7;
  }

  // Returns the message of forward(), which must fail, leave out_ and the step unchanged, and make
  // `saved` unusable for a backward pass.
  std::string forward(const LayerInputs& inputs, const Outputs& outputs) {
    RunState run{Mode::kTrain, 1, 5};
    MultiHeadAttention::Saved saved;
    const std::string message = message_of([&] { layer_.forward(inputs, run, saved, outputs); });
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(run.step, 5U);
    for (float value : out_.values<float>()) EXPECT_EQ(value, 7);
    auto gradients = layer_.zero_gradients();
    EXPECT_EQ(message_of([&] { layer_.backward(saved, {.out = out_}, {}, gradients); }),
              "MultiHeadAttention::backward: saved must come from a forward pass");
    return message;
  }

  MultiHeadAttention layer_{{.width = 4, .heads = 2}};
  Tensor x_ = random_tensor(DType::kFloat32, {2, 3, 4}, 1);
  Tensor out_{DType::kFloat32, {2, 3, 4}};
};

TEST_F(MultiHeadErrors, ForwardNamesTheArgument) {
  const std::string prefix = "MultiHeadAttention::forward: ";
  const Tensor wide = random_tensor(DType::kFloat32, {2, 3, 5}, 1);
  EXPECT_EQ(forward({x_, wide, x_}, {.out = out_}),
            prefix + "k must have 4 channels, the layer's width, got float32 [2,3,5]");
  const Tensor exact = random_tensor(DType::kFloat64, {2, 3, 4}, 1);
  EXPECT_EQ(forward({exact, x_, x_}, {.out = out_}),
            prefix + "q must be float32 as the layer is, got float64 [2,3,4]");
  EXPECT_EQ(forward({x_, x_, {}}, {.out = out_}), prefix + "v must be given");
  const Tensor longer = random_tensor(DType::kFloat32, {2, 6, 4}, 1);
  EXPECT_EQ(forward({x_, x_, longer}, {.out = out_}),
            prefix + "v has Tk = 6 but k has Tk = 3 (k [2,3,4], v [2,6,4])");
  const Tensor batch = random_tensor(DType::kFloat32, {3, 3, 4}, 1);
  EXPECT_NE(forward({x_, batch, batch}, {.out = out_}).find("k has leading axes"),
            std::string::npos);
  const Tensor vector = random_tensor(DType::kFloat32, {4}, 1);
  EXPECT_EQ(forward({vector, x_, x_}, {.out = out_}),
            prefix + "q must have rank 2 to 7, got float32 [4]");
  EXPECT_EQ(forward({x_, x_, x_}, {}), prefix + "out must be given");
  EXPECT_EQ(forward({longer, x_, x_}, {.out = out_}),
            prefix + "out must have the shape [2,6,4], got float32 [2,3,4]");
  EXPECT_EQ(forward({x_, out_, x_}, {.out = out_}), prefix + "out must not overlap k");
  EXPECT_EQ(forward({x_, x_, x_}, {.out = View(out_.values<float>().data(), {2, 3, 4}, {0, 4, 1})}),
            prefix + "out must not overlap itself, got float32 [2,3,4] with strides [0,4,1]");
}

TEST_F(MultiHeadErrors, ForwardRefusesWhatAttentionRefuses) {
  const std::vector<std::int64_t> lengths{2, 4};  // Tk is 3
  EXPECT_NE(forward({x_, x_, x_, lengths}, {.out = out_}).find("lengths"), std::string::npos);
  const std::vector<std::uint8_t> padding(8);
  EXPECT_NE(forward({x_, x_, x_, {}, {Padding{ConstView(padding.data(), {2, 4})}}}, {.out = out_}),
            "");
  Tensor weights(DType::kFloat32, {2, 3, 3});  // without the head axis
  EXPECT_NE(forward({x_, x_, x_}, {.out = out_, .weights = View(weights)}).find("weights"),
            std::string::npos);
  EXPECT_EQ(forward({x_, x_, x_}, {.out = out_, .lse = View(x_.values<float>().data(), {2, 2, 3})}),
            "MultiHeadAttention::forward: lse must not overlap q");
  EXPECT_EQ(
      forward({x_, x_, x_}, {.out = out_, .lse = View(out_.values<float>().data(), {2, 2, 3})}),
      "MultiHeadAttention::forward: lse must not overlap out");
}

TEST_F(MultiHeadErrors, BackwardNamesTheArgument) {
  const std::string prefix = "MultiHeadAttention::backward: ";
  RunState run;
  MultiHeadAttention::Saved saved;
  layer_.forward({x_, x_, x_}, run, saved, {.out = out_});
  auto gradients = layer_.zero_gradients();
  const Tensor dy = random_tensor(DType::kFloat32, {2, 3, 4}, 2);
  const auto backward = [&](const OutputGradients& d_out, const LayerInputGradients& d) {
    return message_of([&] { layer_.backward(saved, d_out, d, gradients); });
  };
  Tensor dx(DType::kFloat32, {2, 3, 4});
  EXPECT_EQ(backward({.out = dy}, {.q = dx, .k = dx, .v = dx}), "");
  EXPECT_EQ(backward({}, {}), prefix + "output_gradients.out must be given");
  Tensor other(DType::kFloat32, {2, 4, 4});
  EXPECT_EQ(backward({.out = dy}, {.k = other}),
            prefix + "input_gradients.k must have the shape [2,3,4], got float32 [2,4,4]");
  EXPECT_EQ(backward({.out = dy}, {.v = x_}), prefix + "input_gradients.v must not overlap q");
  EXPECT_EQ(backward({.out = dx}, {.v = dx}),
            prefix + "input_gradients.v must not overlap output_gradients.out");
  // Gradients may share a buffer, which gets their sum, but may not overlap in part.
  Tensor big(DType::kFloat32, {3, 3, 4});
  EXPECT_EQ(
      backward({.out = dy}, {.q = slice(big.view(), 0, 0, 2), .k = slice(big.view(), 0, 1, 3)}),
      prefix + "input_gradients.k must not overlap input_gradients.q");
  EXPECT_EQ(backward({.out = dy}, {.bias = dx}),
            prefix + "input_gradients.bias has no gradient, because bias is absent");
  gradients.q.weight = Tensor(DType::kFloat32, {1, 1});
  EXPECT_EQ(backward({.out = dy}, {}),
            prefix + "gradients.fc_q.weight must have the shape [4,4], got float32 [1,1]");
}

// The gradient of bias is checked before anything is written.
TEST_F(MultiHeadErrors, BackwardChecksTheGradientOfBias) {
  const std::string prefix = "MultiHeadAttention::backward: input_gradients.bias ";
  for (const bool bias_kv : {false, true}) {
    const MultiHeadAttention layer({.width = 4, .heads = 2, .bias_kv = bias_kv});
    Tensor bias(DType::kFloat32, {3, 3});
    RunState run;
    MultiHeadAttention::Saved saved;
    layer.forward({.q = x_, .k = x_, .v = x_, .bias = bias}, run, saved, {.out = out_});
    auto gradients = layer.zero_gradients();
    const Tensor dy = random_tensor(DType::kFloat32, {2, 3, 4}, 2);
    const auto backward = [&](const View& to) {
      return message_of([&] { layer.backward(saved, {.out = dy}, {.bias = to}, gradients); });
    };
    Tensor small(DType::kFloat32, {1, 1}), wide(DType::kFloat64, {3, 3});
    EXPECT_EQ(backward(small), prefix + "must have the shape [3,3], got float32 [1,1]");
    EXPECT_EQ(backward(wide), prefix + "must be float32 as the layer is, got float64 [3,3]");
    EXPECT_EQ(backward(bias), prefix + "must not overlap bias");
    for (const float value : gradients.o.weight.values<float>()) EXPECT_EQ(value, 0);
    Tensor good(DType::kFloat32, {3, 3});
    EXPECT_EQ(backward(good), "");
  }
}

TEST(LayerErrors, ScoreLayersNeedOutAndAForwardPass) {
  const Tensor x = random_tensor(DType::kFloat32, {2, 3, 4}, 1);
  const DotProductAttention layer;
  DotProductAttention::Saved saved;
  RunState run;
  EXPECT_NE(message_of([&] {
              layer.forward({x, x, x}, run, saved, {});
            }).find("DotProductAttention::forward: out must be given"),
            std::string::npos);
  DotProductAttention::Parameters none;
  EXPECT_EQ(message_of([&] { layer.backward(saved, {}, {}, none); }),
            "DotProductAttention::backward: saved must come from a forward pass");
}

TEST(LayerErrors, LayersWithWidthsNameThem) {
  const BilinearAttention layer(3, 2);
  const Tensor q = random_tensor(DType::kFloat32, {2, 3, 3}, 1);
  const Tensor k = random_tensor(DType::kFloat32, {2, 5, 2}, 1);
  Tensor out(DType::kFloat32, {2, 3, 2});
  BilinearAttention::Saved saved;
  RunState run;
  EXPECT_EQ(
      message_of([&] {
        layer.forward({k, k, k}, run, saved, {.out = out});
      }),
      "BilinearAttention::forward: q must have 3 channels (query_width), got float32 [2,5,2]");
  EXPECT_EQ(message_of([&] {
              layer.forward({q, q, k}, run, saved, {.out = out});
            }),
            "BilinearAttention::forward: k must have 2 channels (key_width), got float32 [2,3,3]");
  const Tensor fine = random_tensor(DType::kFloat64, {2, 3, 3}, 1);
  EXPECT_EQ(message_of([&] {
              layer.forward({fine, k, k}, run, saved, {.out = out});
            }),
            "BilinearAttention::forward: q must be float32, bfloat16 or float16, as the layer is "
            "float32, got float64 [2,3,3]");
  const Tensor half_k = convert(k, DType::kBFloat16);
  layer.forward({q, half_k, half_k}, run, saved, {.out = out});
}

TEST(LayerErrors, SelfAttentionNamesTheArgument) {
  const SelfAttention layer(4);
  const Tensor x = random_tensor(DType::kFloat32, {2, 3, 4}, 1);
  Tensor out(DType::kFloat32, {2, 3, 4});
  SelfAttention::Saved saved;
  RunState run;
  const Tensor wide = random_tensor(DType::kFloat32, {2, 3, 5}, 1);
  EXPECT_EQ(message_of([&] { layer.forward({wide}, run, saved, {.out = out}); }),
            "SelfAttention::forward: x must have 4 channels, the layer's width, got float32 "
            "[2,3,5]");
  EXPECT_EQ(message_of([&] { layer.forward({out}, run, saved, {.out = out}); }),
            "SelfAttention::forward: out must not overlap x");
  auto gradients = layer.zero_gradients();
  EXPECT_EQ(message_of([&] { layer.backward(saved, {}, {}, gradients); }),
            "SelfAttention::backward: saved must come from a forward pass");
  layer.forward({x}, run, saved, {.out = out});
  EXPECT_EQ(message_of([&] { layer.backward(saved, {.out = out}, {.x = out}, gradients); }),
            "SelfAttention::backward: input_gradients.x must not overlap output_gradients.out");
}

// Results of an earlier pass must not be taken for those of a failed one.
template <class Layer, class Inputs>
void expect_failed_pass_is_refused(const Layer& layer, const Inputs& good, const Inputs& bad) {
  typename Layer::Saved saved;
  RunState run{Mode::kTrain, 1, 5};
  Tensor out(DType::kFloat32, {2, 3, 4});
  const Tensor dy = random_tensor(DType::kFloat32, {2, 3, 4}, 1);
  auto gradients = layer.zero_gradients();
  layer.forward(good, run, saved, {.out = out});
  EXPECT_EQ(run.step, 6U);
  EXPECT_NE(message_of([&] { layer.forward(bad, run, saved, {.out = out}); }), "");
  EXPECT_EQ(run.step, 6U);
  EXPECT_NE(message_of([&] {
              layer.backward(saved, {.out = dy}, {}, gradients);
            }).find("saved must come from a forward pass"),
            std::string::npos);
}

TEST(LayerErrors, AFailedForwardPassAllowsNoBackwardPass) {
  const Tensor x = random_tensor(DType::kFloat32, {2, 3, 4}, 1);
  const std::vector<std::int64_t> good{2, 3};
  const std::vector<std::int64_t> bad{2, 4};  // Tk is 3
  const LayerInputs a{x, x, x, good};
  const LayerInputs b{x, x, x, bad};
  {
    MultiHeadAttention layer({.width = 4, .heads = 2});
    MultiHeadAttention::Saved saved;
    RunState run;
    Tensor out(DType::kFloat32, {2, 3, 4}), other(DType::kFloat32, {2, 3, 5});
    auto gradients = layer.zero_gradients();
    layer.forward(a, run, saved, {.out = out});
    EXPECT_NE(message_of([&] { layer.forward(a, run, saved, {.out = other}); }), "");
    EXPECT_NE(message_of([&] { layer.backward(saved, {.out = out}, {}, gradients); }), "");
  }
  expect_failed_pass_is_refused(DotProductAttention(), a, b);
  expect_failed_pass_is_refused(AdditiveAttention(4, 4, 2), a, b);
  expect_failed_pass_is_refused(MultiHeadAttention({.width = 4, .heads = 2}), a, b);
  expect_failed_pass_is_refused(SelfAttention(4), SelfAttentionInputs{x, good},
                                SelfAttentionInputs{x, bad});
}

// A Saved of a layer with other sizes is refused.
TEST(LayerErrors, SavedOfAnotherLayerIsRefused) {
  const auto expect_refused = [](const auto& f) {
    EXPECT_NE(message_of(f).find("saved must come from a forward pass of this layer"),
              std::string::npos);
  };
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const Index width = dtype == DType::kFloat64 ? 4 : 400;
    const Tensor x = random_tensor(dtype, {2, 3, width}, 1);
    const Tensor dy = random_tensor(DType::kFloat32, {2, 3, 4}, 1);
    Tensor y(dtype, {2, 3, width});
    RunState run;
    MultiHeadAttention::Saved of_heads;
    MultiHeadAttention({.width = width, .heads = 2, .dtype = dtype})
        .forward({x, x, x}, run, of_heads, {.out = y});
    const MultiHeadAttention heads({.width = 4, .heads = 2});
    auto gradients = heads.zero_gradients();
    expect_refused([&] { heads.backward(of_heads, {.out = dy}, {}, gradients); });

    const Tensor long_keys = random_tensor(dtype, {2, 3, width + 8}, 1);
    MultiHeadAttention::Saved of_long_keys;
    const MultiHeadAttention other(
        {.width = width, .heads = 2, .dtype = dtype, .key_width = width + 8});
    other.forward({x, long_keys, x}, run, of_long_keys, {.out = y});
    const MultiHeadAttention same({.width = width, .heads = 2, .dtype = dtype});
    auto of_same = same.zero_gradients();
    expect_refused([&] { same.backward(of_long_keys, {.out = y}, {}, of_same); });

    SelfAttention::Saved of_self;
    SelfAttention(width, dtype).forward({x}, run, of_self, {.out = y});
    const SelfAttention self(4);
    auto of_width = self.zero_gradients();
    expect_refused([&] { self.backward(of_self, {.out = dy}, {}, of_width); });
  }
  // The saved target -100000 is no class, but the label that the other layer ignores.
  const Tensor logits = random_tensor(DType::kFloat32, {3, 4}, 1);
  const std::vector<std::int64_t> targets{1, -100000, 2};
  Tensor losses(DType::kFloat32, {3}), dlogits(DType::kFloat32, {3, 4});
  CrossEntropy::Saved saved;
  CrossEntropy(0, -100000).forward(logits, targets, saved, {losses, {}});
  expect_refused([&] { CrossEntropy().backward(saved, losses, dlogits); });
  EXPECT_EQ(message_of([&] { CrossEntropy(0.1, -100000).backward(saved, losses, dlogits); }), "");
}

}  // namespace
}  // namespace qkv::test
