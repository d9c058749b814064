// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/gradients.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

std::vector<std::string> names_of(const GruStack& stack) {
  std::vector<std::string> names;
  for_each_parameter(stack, [&](const auto& p) { names.push_back(p.name); });
  return names;
}

TEST(GruStack, NamesAndSizesAreTorchs) {
  const GruStack stack({.input = 3, .hidden = 4, .bidirectional = true, .bias = false}, 2);
  EXPECT_EQ(names_of(stack),
            (std::vector<std::string>{"weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse",
                                      "weight_hh_l0_reverse", "weight_ih_l1", "weight_hh_l1",
                                      "weight_ih_l1_reverse", "weight_hh_l1_reverse"}));
  for_each_parameter(stack, [](const auto& p) {
    if (p.name == "weight_ih_l1") {
      EXPECT_EQ(p.value.shape(), Dims(12, 8));
    }
  });
  const GruStack one({.input = 3, .hidden = 4}, 1);
  EXPECT_EQ(names_of(one).front(), "weight_ih_l0");
}

TEST(GruStack, OneLayerIsTheLayer) {
  const GruConfig config{.input = 3, .hidden = 4, .bidirectional = true, .dtype = kF64};
  GruStack stack(config, 1);
  Gru layer(config);
  initialise(stack, 5);
  initialise(layer, 5);
  const Tensor x = random_tensor(kF64, {2, 5, 3}, 1);
  Tensor a(kF64, {2, 5, 8}), b(kF64, {2, 5, 8});
  GruStack::Saved saved;
  Gru::Saved of_layer;
  Context context;
  stack.forward({x}, saved, {.out = a}, context);
  layer.forward({x}, of_layer, {.out = b}, context);
  EXPECT_EQ(values_of(a), values_of(b));
}

// A pass that saves nothing gives the bits of one that saves.
TEST(GruStack, PackedPassesHaveTheSameBits) {
  for (const Index layers : {1, 2, 3}) {
    GruStack stack({.input = 3, .hidden = 4, .bidirectional = true}, layers);
    initialise(stack, 5);
    const Tensor x = random_tensor(DType::kFloat32, {3, 5, 3}, 1);
    const Tensor state = random_tensor(DType::kFloat32, {2 * layers, 3, 4}, 2);
    const std::vector<std::int64_t> lengths{4, 0, 5};
    const Dims out_shape{3, 5, 8};
    Tensor out(DType::kFloat32, out_shape), last(DType::kFloat32, state.shape());
    Tensor out2(DType::kFloat32, out_shape), last2(DType::kFloat32, state.shape());
    GruStack::Saved saved;
    Context context;
    stack.forward({x, lengths, state}, saved, {out, last}, context);
    stack.forward({x, lengths, state}, stack.pack(context), {out2, last2}, context);
    EXPECT_EQ(bytes_of(out2), bytes_of(out));
    EXPECT_EQ(bytes_of(last2), bytes_of(last));
  }
}

// Compares the gradients of x, the initial states and all parameters with central differences.
TEST(GruStack, GradientsAreDifferences) {
  for (const bool both : {false, true}) {
    const Index directions = both ? 2 : 1;
    GruStack stack({.input = 2, .hidden = 3, .bidirectional = both, .dtype = kF64}, 3);
    initialise(stack, 7);
    Tensor x = random_tensor(kF64, {2, 4, 2}, 1);
    Tensor state = random_tensor(kF64, {3 * directions, 2, 3}, 2);
    const std::vector<std::int64_t> lengths{4, 2};
    const Tensor dout = random_tensor(kF64, {2, 4, 3 * directions}, 3);
    const Tensor dlast = random_tensor(kF64, state.shape(), 4);
    Tensor out(kF64, dout.shape()), last(kF64, state.shape());
    GruStack::Saved saved;
    Context context;
    const auto loss = [&] {
      stack.forward({x, lengths, state}, saved, {out, last}, context);
      return dot(out, dout) + dot(last, dlast);
    };
    loss();
    Tensor dx(kF64, x.shape()), dstate(kF64, state.shape());
    auto gradients = stack.zero_gradients();
    stack.backward(saved, {dout, dlast}, {.x = dx, .state = dstate}, gradients, context);
    std::vector<CheckedArray> arrays{{"x", x, dx}, {"state", state, dstate}};
    for_each_parameter(stack, gradients, [&](const auto& p, Tensor& gradient) {
      arrays.push_back({p.name, p.value, gradient});
    });
    EXPECT_EQ(arrays.size(), 2U + 3 * 4 * static_cast<std::size_t>(directions));
    for (const CheckedArray& array : arrays) expect_gradient(array, loss, array.name);
  }
}

TEST(GruStack, ErrorsNameTheArgument) {
  EXPECT_EQ(error_of([] { GruStack({.input = 2, .hidden = 3}, 0); }),
            "GruStack: layers must be at least 1, got 0");
  const GruStack stack({.input = 2, .hidden = 3, .dtype = kF64}, 2);
  const Tensor x = random_tensor(kF64, {2, 4, 2}, 1);
  const Tensor state = random_tensor(kF64, {1, 2, 3}, 1);
  Tensor out(kF64, {2, 4, 3});
  GruStack::Saved saved;
  Context context;
  EXPECT_EQ(error_of([&] {
              stack.forward({x, {}, state}, saved, {.out = out}, context);
            }),
            "GruStack::forward: inputs.state must have the shape [2,2,3], got float64 [1,2,3]");
  EXPECT_EQ(error_of([&] { stack.forward({x}, GruStack::Packed{}, {.out = out}, context); }),
            "GruStack::forward: packed must come from pack() of this layer");
  auto gradients = stack.zero_gradients();
  GruStack::Saved none;
  EXPECT_EQ(error_of([&] {
              stack.backward(none, {out, {}}, {}, gradients, context);
            }),
            "GruStack::backward: saved must come from a forward pass of this layer");
  stack.forward({x}, saved, {.out = out}, context);
  // A wrong result buffer is refused before the first layer writes.
  Tensor last = random_tensor(kF64, {2, 2, 3}, 2);
  const Tensor before = contiguous(last);
  EXPECT_EQ(error_of([&] {
              stack.forward({x}, saved, {{}, last.view()}, context);
            }),
            "GruStack::forward: outputs.out must be given");
  Tensor square = random_tensor(kF64, {2, 4, 3}, 3);
  const GruStack same({.input = 3, .hidden = 3, .dtype = kF64}, 2);
  EXPECT_EQ(error_of([&] {
              same.forward({square}, saved, {square.view(), last.view()}, context);
            }),
            "GruStack::forward: outputs.out must not overlap inputs.x");
  EXPECT_TRUE(std::ranges::equal(last.values<double>(), before.values<double>()));
  // A failed pass discards the results of an earlier one, also in layers above the one that failed.
  stack.forward({x}, saved, {.out = out}, context);
  EXPECT_NE(error_of([&] { stack.forward({out}, saved, {.out = out}, context); }), "");
  EXPECT_EQ(error_of([&] {
              stack.backward(saved, {out, {}}, {}, gradients, context);
            }),
            "GruStack::backward: saved must come from a forward pass of this layer");
  for (const double dw : gradients.layers[1].forward.weight_ih.values<double>()) EXPECT_EQ(dw, 0);
  stack.forward({x}, saved, {.out = out}, context);
  for (const Dims& shape : {Dims{3, 2, 3}, Dims{1, 2, 3}, Dims{0}}) {
    const Tensor dlast(kF64, shape);
    EXPECT_EQ(error_of([&] {
                stack.backward(saved, {out, dlast}, {}, gradients, context);
              }),
              "GruStack::backward: output_gradients.state must have the shape [2,2,3], got " +
                  describe(dlast));
  }
}

}  // namespace
}  // namespace qkv::test
