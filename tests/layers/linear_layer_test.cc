// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <qkv/layers.h>
#include <qkv/layers/linear.h>

#include "tests/layers/gradients.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

// Tests Linear and PackedLinear; tests of the sums themselves are in linear_test.cc.
namespace qkv::test {
namespace {

TEST(LinearLayer, GradientsAreDerivatives) {
  for (const bool bias : {false, true}) {
    Linear layer = initialised(Linear(3, 4, bias, kF64));
    Tensor x = random_tensor(kF64, {2, 5, 3}, 1);
    const Tensor dy = random_tensor(kF64, {2, 5, 4}, 2);
    Tensor y(kF64, {2, 5, 4});
    Linear::Saved saved;
    auto loss = [&] {
      layer.forward(x, saved, y);
      return dot(y, dy);
    };
    loss();
    Tensor dx(kF64, x.shape());
    auto gradients = layer.zero_gradients();
    layer.backward(saved, dy, dx, gradients);
    EXPECT_EQ(gradients.bias.given(), bias);
    expect_gradients({{"x", x, dx}}, layer, gradients, loss, bias ? "bias" : "no bias");
  }
}

// Without rows the gradients of parameters are 0, for any width.
TEST(LinearLayer, WithoutRowsGradientsAreZero) {
  for (const Index width : {3, 256, 1024}) {
    const Linear layer(width, width, true, DType::kFloat32);
    const Tensor none(DType::kFloat32, {0, width});
    Tensor y(DType::kFloat32, {0, width}), dx(DType::kFloat32, {0, width});
    Linear::Saved saved;
    layer.forward(none, saved, y);
    auto gradients = layer.zero_gradients();
    for (Tensor* gradient : {&gradients.weight, &gradients.bias}) {
      std::ranges::fill(gradient->values<float>(), 7.0F);
    }
    layer.backward(saved, y, dx, gradients);
    for (const Tensor* gradient : {&gradients.weight, &gradients.bias}) {
      EXPECT_TRUE(std::ranges::all_of(gradient->values<float>(), [](float x) { return x == 0; }));
    }
  }
}

TEST(LinearLayer, GradientsAreAddedOrNotAskedFor) {
  const Linear layer = initialised(Linear(3, 4, true, kF32));
  const Tensor x = random_tensor(kF32, {6, 3}, 1);
  const Tensor dy = random_tensor(kF32, {6, 4}, 2);
  Tensor dx(kF32, {6, 3});
  auto gradients = layer.zero_gradients();
  layer.backward({x}, dy, dx, gradients);
  const auto once = values_of(gradients.weight);
  const auto once_bias = values_of(gradients.bias);
  const auto once_x = values_of(dx);
  layer.backward({x}, dy, dx, gradients, Write::kAccumulate);
  for (std::size_t n = 0; n < once.size(); ++n) {
    EXPECT_EQ(values_of(gradients.weight)[n], 2 * once[n]);
  }
  for (std::size_t n = 0; n < once_bias.size(); ++n) {
    EXPECT_EQ(values_of(gradients.bias)[n], 2 * once_bias[n]);
  }
  for (std::size_t n = 0; n < once_x.size(); ++n) EXPECT_EQ(values_of(dx)[n], 2 * once_x[n]);
  Linear::Parameters of_weight{Tensor(kF32, {4, 3}), {}};
  layer.backward({x}, dy, {}, of_weight);
  EXPECT_EQ(values_of(of_weight.weight), once);
  EXPECT_FALSE(of_weight.bias.given());
}

// Gradients of whole blocks of 128 rows, accumulated call by call, are bit-identical to those of
// one call, for any distance between rows of dy.
TEST(Linear, BlocksOfRowsMayComeInSeveralCalls) {
  for (const DType dtype : {kF32, kF64}) {
    for (const Index out : {5, 30, 256}) {
      const Linear layer = initialised(Linear(70, out, true, dtype));
      const Tensor x = random_tensor(dtype, {300, 70}, 1);
      const Tensor dy = random_tensor(dtype, {300, out}, 2);
      Linear::Parameters want = layer.zero_gradients();
      layer.backward({x}, dy, {}, want);
      for (const Index first : {128, 256}) {
        for (const Index apart : {out, Index{256}, Index{300}}) {
          for (const int threads : {1, 2, 3}) {
            Context context(Executor::threads(threads));
            Tensor memory(dtype, {300, apart});
            const View dy_rows = slice(memory.view(), 1, 0, out);
            copy(dy, dy_rows);
            Linear::Parameters got = layer.zero_gradients();
            layer.backward({slice(x.view(), 0, 0, first)}, slice(dy_rows, 0, 0, first), {}, got,
                           Write::kOverwrite, context);
            layer.backward({slice(x.view(), 0, first, 300)}, slice(dy_rows, 0, first, 300), {}, got,
                           Write::kAccumulate, context);
            EXPECT_EQ(all_bytes(got), all_bytes(want)) << out << " " << first << " " << apart;
          }
        }
      }
    }
  }
}

// The sizes are around panels of 64 outputs, tiles of 6 rows and blocks of 64 inputs.
TEST(PackedLinear, HasTheBitsOfTheLayer) {
  Random random(1);
  for (const DType dtype : {kF32, kF64}) {
    for (const Index in : {1, 7, 257}) {
      for (const Index out : {1, 63, 65, 130}) {
        const Linear layer = initialised(Linear(in, out, in != 7, dtype));
        for (const int threads : {1, 2}) {
          Context context(Executor::threads(threads));
          const PackedLinear packed(layer.parameters(), context);
          for (const Index rows : {0, 1, 7, 70}) {
            const std::string replay = std::string(name_of(dtype)) + " " + std::to_string(in) +
                                       " to " + std::to_string(out) + ", " + std::to_string(rows);
            const Tensor x = random_tensor(dtype, {rows, in}, 1);
            Tensor y(dtype, {rows, out});
            Tensor want(dtype, {rows, out});
            Linear::Saved saved;
            layer.forward(x, saved, want, context);
            packed.forward(x, y);
            EXPECT_EQ(bytes_of(y), bytes_of(want)) << replay;

            const Tensor dy = random_tensor(dtype, {rows, out}, 2);
            Tensor dx = random_tensor(dtype, {rows, in}, 3);
            Tensor want_dx = contiguous(dx);
            Linear::Parameters none;
            for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
              layer.backward(saved, dy, want_dx, none, write, context);
              packed.backward_input(dy, dx, write);
              EXPECT_EQ(bytes_of(dx), bytes_of(want_dx)) << replay;
            }
            // The prepacked weights may be used on several contexts.
            Context other;
            const PackedLinear shared(packed, other);
            for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
              shared.forward(x, y);
              EXPECT_EQ(bytes_of(y), bytes_of(want)) << replay;
              layer.backward(saved, dy, want_dx, none, write, context);
              shared.backward_input(dy, dx, write);
              EXPECT_EQ(bytes_of(dx), bytes_of(want_dx)) << replay;
            }
            // A weight and a bias suffice, and backward() may write gradients to any tensors.
            const PackedLinear parts(layer.parameters().weight, layer.parameters().bias, context);
            Linear::Parameters want_both = layer.zero_gradients();
            Linear::Parameters both = layer.zero_gradients();
            for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
              layer.backward(saved, dy, want_dx, want_both, write, context);
              parts.backward(x, dy, dx, both.weight, both.bias, write);
              EXPECT_EQ(bytes_of(dx), bytes_of(want_dx)) << replay;
              EXPECT_EQ(all_bytes(both), all_bytes(want_both)) << replay;
            }
          }
        }
      }
    }
  }
}

TEST(PackedLinear, TakesAnyLayout) {
  Random random(2);
  Context context;
  const Linear layer = initialised(Linear(7, 4, true, kF32));
  const PackedLinear packed(layer.parameters(), context);
  for (const Layout layout : kLayouts) {
    Guarded x(kF32, {2, 3, 7}, layout);
    x.fill_normal(random);
    Tensor want(kF32, {2, 3, 4});
    Linear::Saved saved;
    layer.forward(x, saved, want);
    for (const Layout y_layout : kOwnLayouts) {
      Guarded y(kF32, {2, 3, 4}, y_layout);
      packed.forward(x, y);
      EXPECT_TRUE(compare("y", y.view(), values_of(want), {}, std::string(name_of(y_layout))));
      EXPECT_TRUE(y.intact());
      Guarded dx(kF32, {2, 3, 7}, y_layout);
      Tensor want_dx(kF32, {2, 3, 7});
      packed.backward_input(y.view(), dx);  // y serves as dy
      packed.backward_input(want, want_dx);
      EXPECT_TRUE(compare("dx", dx.view(), values_of(want_dx), {}, std::string(name_of(y_layout))));
      EXPECT_TRUE(dx.intact());
    }
  }
}

TEST(PackedLinear, MovesAndKeepsItsPanels) {
  Context context;
  const Linear layer = initialised(Linear(3, 2, true, kF64));
  const Linear other = initialised(Linear(5, 9, false, kF32));
  PackedLinear packed(layer.parameters(), context);
  PackedLinear moved(std::move(packed));
  PackedLinear target(other.parameters(), context);
  target = std::move(moved);
  const Tensor x = random_tensor(kF64, {4, 3}, 1);
  Tensor y(kF64, {4, 2}), want(kF64, {4, 2});
  Linear::Saved saved;
  layer.forward(x, saved, want);
  target.forward(x, y);
  EXPECT_EQ(bytes_of(y), bytes_of(want));
}

// ---- errors ---------------------------------------------------------------------------------

TEST(LinearErrors, SizesAndTypes) {
  EXPECT_EQ(message_of([] { Linear(0, 2); }), "Linear: in must be at least 1, got 0");
  EXPECT_EQ(message_of([] { Linear(2, -1); }), "Linear: out must be at least 1, got -1");
  EXPECT_EQ(message_of([] { Linear(2, 2, true, DType::kFloat16); }),
            "Linear: dtype must be float32 or float64, got float16");
  EXPECT_EQ(message_of([] { Linear(Index{1} << 40, Index{1} << 40); }),
            "Linear: in or out must be smaller: parameters may take at most 2^63 - 1 bytes, got "
            "float32 [1099511627776,1099511627776]");
}

TEST(LinearErrors, ForwardNamesTheArgument) {
  Context context;
  const Linear layer = initialised(Linear(3, 2, true, kF32));
  const PackedLinear packed(layer.parameters(), context);
  Tensor x = random_tensor(kF32, {4, 3}, 1);
  Tensor y = random_tensor(kF32, {4, 2}, 2);
  const auto before = bytes_of(y);
  // Linear and PackedLinear reject the same calls.
  const auto message = [&](const ConstView& in, const View& out) {
    Linear::Saved saved{x};
    const std::string text = message_of([&] { layer.forward(in, saved, out); });
    EXPECT_FALSE(saved.x.given());  // after a failed forward pass, no backward pass is possible
    EXPECT_EQ(message_of([&] { packed.forward(in, out); }), "Packed" + text);
    EXPECT_EQ(bytes_of(y), before);
    return text;
  };
  const std::string prefix = "Linear::forward: ";
  EXPECT_EQ(message({}, y), prefix + "x must be given");
  EXPECT_EQ(message(x, {}), prefix + "y must be given");
  EXPECT_EQ(message(random_tensor(kF64, {4, 3}, 1), y),
            prefix + "x must be float32 as the layer is, got float64 [4,3]");
  EXPECT_EQ(message(random_tensor(kF32, {4, 2}, 1), y),
            prefix + "x must have 3 channels, the layer's width, got float32 [4,2]");
  EXPECT_EQ(message(random_tensor(kF32, {3}, 1), y),
            prefix + "x must have rank 2 to 7, got float32 [3]");
  EXPECT_EQ(message(random_tensor(kF32, {5, 3}, 1), y),
            prefix + "y must have the shape [5,2], got float32 [4,2]");
  EXPECT_EQ(message(x, View(x.values<float>().data(), {4, 2}, {3, 1})),
            prefix + "y must not overlap x");
  EXPECT_EQ(message(x, View(y.values<float>().data(), {4, 2}, {0, 1})),
            prefix + "y must not overlap itself, got float32 [4,2] with strides [0,1]");
}

TEST(LinearErrors, BackwardNamesTheArgument) {
  const Linear layer = initialised(Linear(3, 2, true, kF32));
  Tensor x = random_tensor(kF32, {4, 3}, 1);
  Tensor dy = random_tensor(kF32, {4, 2}, 2);
  Tensor dx(kF32, {4, 3});
  auto gradients = layer.zero_gradients();
  const auto message = [&](const Linear::Saved& saved, const ConstView& gradient, const View& to) {
    return message_of([&] { layer.backward(saved, gradient, to, gradients); });
  };
  const std::string prefix = "Linear::backward: ";
  EXPECT_EQ(message({}, dy, dx), prefix + "saved must come from a forward pass");
  EXPECT_EQ(message({x}, {}, dx), prefix + "dy must be given");
  EXPECT_EQ(message({x}, x, dx), prefix + "dy must have the shape [4,2], got float32 [4,3]");
  EXPECT_EQ(message({x}, dy, dy), prefix + "dx must have the shape [4,3], got float32 [4,2]");
  EXPECT_EQ(message({x}, dy, x), prefix + "dx must not overlap x");
  EXPECT_EQ(message({x}, dy, View(gradients.weight.values<float>().data(), {4, 3}, {0, 1})),
            prefix + "dx must not overlap itself, got float32 [4,3] with strides [0,1]");
  // The saved x is another layer's.
  const Tensor wide = random_tensor(kF32, {4, 300}, 1);
  EXPECT_EQ(message({wide}, dy, {}),
            prefix + "saved.x must have 3 channels, the layer's width, got float32 [4,300]");
  const Tensor exact = random_tensor(kF64, {4, 3}, 1);
  EXPECT_EQ(message({exact}, dy, {}),
            prefix + "saved.x must be float32 as the layer is, got float64 [4,3]");
  EXPECT_EQ(all_bytes(gradients), all_bytes(layer.zero_gradients()));
  gradients.weight = Tensor(kF32, {2, 4});
  EXPECT_EQ(message({x}, dy, dx),
            prefix + "gradients.weight must have the shape [2,3], got float32 [2,4]");
  gradients = initialised(Linear(3, 2, true, kF64)).zero_gradients();
  EXPECT_EQ(message({x}, dy, dx),
            prefix + "gradients.weight must be float32 as the layer is, got float64 [2,3]");
  const Linear without = initialised(Linear(3, 2, false, kF32));
  Linear::Parameters of_bias{{}, Tensor(kF32, {2})};
  EXPECT_EQ(message_of([&] { without.backward({x}, dy, dx, of_bias); }),
            prefix + "gradients.bias is of a parameter that the layer lacks");
}

// Results may overlap neither inputs that are still read nor each other.
TEST(LinearErrors, ResultsAreApartFromParametersAndGradients) {
  Linear layer = initialised(Linear(3, 3, true, kF32));
  const Tensor x = random_tensor(kF32, {3, 3}, 1);
  Tensor y(kF32, {3, 3}), dx(kF32, {3, 3});
  Linear::Saved saved;
  const auto forward = [&](const View& to) {
    return message_of([&] { layer.forward(x, saved, to); });
  };
  Tensor& weight = layer.parameters().weight;
  EXPECT_EQ(forward(weight), "Linear::forward: y must not overlap weight");
  layer.parameters().bias = Tensor();
  EXPECT_EQ(forward(y), "");
  Linear::Parameters gradients = layer.zero_gradients();
  const auto backward = [&](const ConstView& dy, const View& to) {
    return message_of([&] { layer.backward({x}, dy, to, gradients); });
  };
  const std::string prefix = "Linear::backward: ";
  EXPECT_EQ(backward(y, weight), prefix + "dx must not overlap weight");
  EXPECT_EQ(backward(y, gradients.weight), prefix + "dx must not overlap gradients.weight");
  EXPECT_EQ(backward(gradients.weight, dx), prefix + "gradients.weight must not overlap dy");
  EXPECT_EQ(backward(y, dx), "");
}

TEST(LinearErrors, PackedLinearNamesTheArgument) {
  Context context;
  const auto message = [&](LinearParameters p) {
    return message_of([&] { PackedLinear packed(p, context); });
  };
  EXPECT_EQ(message({}), "PackedLinear: parameters.weight must be given");
  EXPECT_EQ(message({Tensor(DType::kFloat16, {2, 3}), {}}),
            "PackedLinear: parameters.weight must be float32 or float64, got float16 [2,3]");
  EXPECT_EQ(message({Tensor(kF32, {6}), {}}),
            "PackedLinear: parameters.weight must have the shape [out,in], got float32 [6]");
  EXPECT_EQ(message({Tensor(kF32, {2, 3}), Tensor(kF32, {1})}),
            "PackedLinear: parameters.bias must have the shape [2], got float32 [1]");
  EXPECT_EQ(message({Tensor(kF32, {2, 3}), Tensor(kF64, {2})}),
            "PackedLinear: parameters.bias must be float32 as the layer is, got float64 [2]");

  const Linear layer = initialised(Linear(3, 2, true, kF32));
  const PackedLinear packed(layer.parameters(), context);
  Tensor dy = random_tensor(kF32, {4, 2}, 2);
  Tensor dx(kF32, {4, 3});
  const auto backward = [&](const ConstView& gradient, const View& to) {
    return message_of([&] { packed.backward_input(gradient, to); });
  };
  const std::string prefix = "PackedLinear::backward_input: ";
  EXPECT_EQ(backward({}, dx), prefix + "dy must be given");
  EXPECT_EQ(backward(dx, dx),
            prefix + "dy must have 2 channels, the layer's width, got float32 [4,3]");
  EXPECT_EQ(backward(dy, {}), prefix + "dx must be given");
  EXPECT_EQ(backward(dy, dy), prefix + "dx must have the shape [4,3], got float32 [4,2]");
  EXPECT_EQ(backward(View(dx.values<float>().data(), {4, 2}), dx),
            prefix + "dx must not overlap dy");

  const Tensor x = random_tensor(kF32, {4, 3}, 2);
  Tensor none, narrow(kF32, {2, 2}), bias(kF32, {2});
  const auto both = [&](const ConstView& from, Tensor& d_weight, Tensor& d_bias) {
    return message_of([&] { packed.backward(from, dy, dx, d_weight, d_bias, Write::kOverwrite); });
  };
  EXPECT_EQ(both(x, none, bias), "");
  EXPECT_EQ(both({}, none, bias), "PackedLinear::backward: x must be given");
  EXPECT_EQ(
      both(x, narrow, bias),
      "PackedLinear::backward: gradients.weight must have the shape [2,3], got float32 [2,2]");
}

}  // namespace
}  // namespace qkv::test
