// SPDX-License-Identifier: Apache-2.0
// Tests the GRU cell step by step in all the ways in which it may be called, and invalid calls of
// cell and layer.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers/gru.h>

#include "tests/layers/gradients.h"
#include "tests/layers/support.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

// ---- one step -------------------------------------------------------------------------------

TEST(GruSteps, GradientsAreDerivatives) {
  for (const bool bias : {false, true}) {
    GruCell cell = initialised(GruCell(3, 4, bias, kF64));
    Tensor x = random_tensor(kF64, {5, 3}, 1);
    Tensor h = random_tensor(kF64, {5, 4}, 2);
    const Tensor dnext = random_tensor(kF64, {5, 4}, 3);
    Tensor next(kF64, {5, 4}), gates(kF64, {5, 16});
    Context context;
    auto loss = [&] {
      const GruCell::Steps steps(cell, context);  // packs the parameters as they are now
      steps.forward(x, h, next, gates);
      return dot(next, dnext);
    };
    loss();
    Tensor dx(kF64, {5, 3}), dh(kF64, {5, 4}), dgates(kF64, {5, 16});
    GruCell::Steps(cell, context).backward(gates, h, dnext, dx, dh, dgates);
    auto gradients = cell.zero_gradients();
    cell.parameter_gradients(x, h, dgates, gradients, Write::kOverwrite, context);
    const std::string replay = bias ? "bias" : "no bias";
    EXPECT_EQ(expect_gradients({{"x", x, dx}, {"h", h, dh}}, cell, gradients, loss, replay),
              bias ? 4 : 2);
  }
}

// The steps of several contexts may share prepacked weights, which keep the values that the
// parameters had when they were packed.
TEST(GruSteps, AreSharedByContexts) {
  for (const DType dtype : {kF32, kF64}) {
    GruCell cell = initialised(GruCell(70, 17, true, dtype));
    const Tensor x = random_tensor(dtype, {9, 70}, 1);
    const Tensor h = random_tensor(dtype, {9, 17}, 2);
    const Tensor dnext = random_tensor(dtype, {9, 17}, 3);
    Context context, other;
    const auto bytes = [&](const GruCell::Steps& steps) {
      Tensor next(dtype, {9, 17}), gates(dtype, {9, 68});
      steps.forward(x, h, next, gates);
      Tensor dx(dtype, {9, 70}), dh(dtype, {9, 17}), dgates(dtype, {9, 68});
      steps.backward(gates, h, dnext, dx, dh, dgates);
      std::vector<std::uint8_t> all;
      add_bytes(all, {&next, &gates, &dx, &dh, &dgates});
      return all;
    };
    const GruCell::Steps first(cell, context);
    const auto want = bytes(first);
    fill_normal(cell.parameters().weight_ih, 4);
    fill_normal(cell.parameters().weight_hh, 5);
    EXPECT_EQ(bytes(GruCell::Steps(first, other)), want);
    EXPECT_NE(bytes(GruCell::Steps(cell, other)), want);
  }
}

// Rows may be pieces of wider rows, as in a decoder, with NaN around them; gates and dx may be
// absent; steps may be moved; there may be two threads. Results are bit-identical.
TEST(GruSteps, RowsMayBePiecesOfWiderOnes) {
  constexpr Index kRows = 70;  // more than one task
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {kF32, kF64}) {
    const GruCell cell = initialised(GruCell(5, 17, true, dtype));
    const Tensor x = random_tensor(dtype, {kRows, 5}, 1);
    const Tensor h = random_tensor(dtype, {kRows, 17}, 2);
    const Tensor dnext = random_tensor(dtype, {kRows, 17}, 3);
    Context context;
    const GruCell::Steps steps(cell, context);
    Tensor next(dtype, {kRows, 17}), gates(dtype, {kRows, 68});
    steps.forward(x, h, next, gates);
    Tensor dx(dtype, {kRows, 5}), dh(dtype, {kRows, 17}), dgates(dtype, {kRows, 68});
    steps.backward(gates, h, dnext, dx, dh, dgates);

    // A row holds x, h, next, gates, dnext, dx, dh and dgates, two numbers apart.
    Tensor wide(dtype, {kRows, 5 + 17 + 17 + 68 + 17 + 5 + 17 + 68 + 2 * 8});
    copy(ConstView(&nan, {1}), wide);
    Index used = 0;
    const auto piece = [&](Index width) {
      used += width + 2;
      return slice(wide, 1, used - width - 2, used - 2);
    };
    const View x2 = piece(5), h2 = piece(17), next2 = piece(17), gates2 = piece(68);
    const View dnext2 = piece(17), dx2 = piece(5), dh2 = piece(17), dgates2 = piece(68);
    copy(x, x2);
    copy(h, h2);
    copy(dnext, dnext2);
    Context two(Executor::threads(2));
    GruCell::Steps from(cell, two);
    const GruCell::Steps moved(std::move(from));
    moved.forward(x2, h2, next2, gates2);
    moved.backward(gates2, h2, dnext2, dx2, dh2, dgates2);
    EXPECT_EQ(values_of(next2), values_of(next));
    EXPECT_EQ(values_of(gates2), values_of(gates));
    EXPECT_EQ(values_of(dx2), values_of(dx));
    EXPECT_EQ(values_of(dh2), values_of(dh));
    EXPECT_EQ(values_of(dgates2), values_of(dgates));
    Index gaps = 0;
    for (const double value : values_of(wide)) gaps += std::isnan(value) ? 1 : 0;
    EXPECT_EQ(gaps, kRows * 2 * 8);

    copy(ConstView(&nan, {1}), next2);
    copy(ConstView(&nan, {1}), dh2);
    moved.forward(x2, h2, next2, {});
    moved.backward(gates2, h2, dnext2, {}, dh2, dgates2);
    EXPECT_EQ(values_of(next2), values_of(next));
    EXPECT_EQ(values_of(dh2), values_of(dh));
  }
}

TEST(GruSteps, ParameterGradientsAreAddedOrNotAskedFor) {
  const GruCell cell = initialised(GruCell(3, 4, true, kF64));
  Context context;
  const Tensor x = random_tensor(kF64, {6, 3}, 1);
  const Tensor h = random_tensor(kF64, {6, 4}, 2);
  const Tensor dgates = random_tensor(kF64, {6, 16}, 3);
  auto gradients = cell.zero_gradients();
  cell.parameter_gradients(x, h, dgates, gradients, Write::kOverwrite, context);
  auto twice = cell.zero_gradients();
  for (int n = 0; n < 2; ++n) {
    cell.parameter_gradients(x, h, dgates, twice, Write::kAccumulate, context);
  }
  for_each_parameter(gradients, twice, [&](const auto& p, const Tensor& sum) {
    std::vector<double> want = values_of(p.value);
    for (double& value : want) value *= 2;
    EXPECT_EQ(values_of(sum), want) << p.name;
  });
  GruCell::Parameters one;
  one.bias_hh = Tensor(kF64, {12});
  cell.parameter_gradients(x, h, dgates, one, Write::kOverwrite, context);
  EXPECT_EQ(values_of(one.bias_hh), values_of(gradients.bias_hh));
  EXPECT_FALSE(one.weight_ih.given());
  // Gradients of no rows are 0.
  cell.parameter_gradients(Tensor(kF64, {0, 3}), Tensor(kF64, {0, 4}), Tensor(kF64, {0, 16}),
                           gradients, Write::kOverwrite, context);
  EXPECT_EQ(all_bytes(gradients), all_bytes(cell.zero_gradients()));
}

// ---- errors ---------------------------------------------------------------------------------

TEST(GruErrors, SizesAndTypes) {
  const auto gru = [](const GruConfig& config) { return message_of([&] { Gru layer(config); }); };
  EXPECT_EQ(gru({.input = 0, .hidden = 2}), "Gru: input must be at least 1, got 0");
  EXPECT_EQ(gru({.input = 2, .hidden = -1}), "Gru: hidden must be at least 1, got -1");
  EXPECT_EQ(gru({.input = 2, .hidden = 2, .dtype = DType::kInt32}),
            "Gru: dtype must be float32 or float64, got int32");
  EXPECT_EQ(gru({.input = 2, .hidden = Index{1} << 62}),
            "Gru: hidden must be smaller, got 4611686018427387904");
  EXPECT_EQ(message_of([] { GruCell(0, 2); }), "GruCell: input must be at least 1, got 0");
  EXPECT_EQ(message_of([] { GruCell(2, 0); }), "GruCell: hidden must be at least 1, got 0");
}

TEST(GruErrors, StepsNameTheArgument) {
  const GruCell cell = initialised(GruCell(3, 2, true, kF32));
  Context context;
  const GruCell::Steps steps(cell, context);
  const Tensor x = random_tensor(kF32, {4, 3}, 1);
  Tensor h = random_tensor(kF32, {4, 2}, 2);
  Tensor next(kF32, {4, 2}), gates(kF32, {4, 8});
  const std::string prefix = "GruCell::Steps::forward: ";
  const auto forward = [&](const ConstView& in, const ConstView& state, const View& out,
                           const View& to_gates) {
    return message_of([&] { steps.forward(in, state, out, to_gates); });
  };
  EXPECT_EQ(forward({}, h, next, gates), prefix + "x must be given");
  EXPECT_EQ(forward(h, h, next, gates), prefix + "x must have the shape [4,3], got float32 [4,2]");
  EXPECT_EQ(forward(random_tensor(kF64, {4, 3}, 1), h, next, gates),
            prefix + "x must be float32 as the layer is, got float64 [4,3]");
  EXPECT_EQ(forward(x, random_tensor(kF32, {5, 2}, 1), next, gates),
            prefix + "h must have the shape [4,2], got float32 [5,2]");
  EXPECT_EQ(forward(x, h, gates, gates),
            prefix + "next must have the shape [4,2], got float32 [4,8]");
  EXPECT_EQ(forward(x, h, next, next),
            prefix + "gates must have the shape [4,8], got float32 [4,2]");
  EXPECT_EQ(forward(x, h, h, gates), prefix + "next must not overlap h");
  EXPECT_EQ(forward(transpose(ConstView(random_tensor(kF32, {3, 4}, 1)), 0, 1), h, next, gates),
            prefix + "x must have contiguous channels, got a stride of 4");
  // No refused call wrote to `next`.
  EXPECT_EQ(all_bytes(LinearParameters{contiguous(next), {}}),
            all_bytes(LinearParameters{Tensor(kF32, {4, 2}), {}}));

  const std::string back = "GruCell::Steps::backward: ";
  Tensor dx(kF32, {4, 3}), dh(kF32, {4, 2}), dgates(kF32, {4, 8});
  const auto backward = [&](const ConstView& state, const ConstView& dnext, const View& to_x,
                            const View& to_h) {
    return message_of([&] { steps.backward(gates, state, dnext, to_x, to_h, dgates); });
  };
  EXPECT_EQ(backward(h, next, dx, dh), "");
  EXPECT_EQ(backward({}, next, dx, dh), back + "h must be given");
  EXPECT_EQ(backward(x, next, dx, dh), back + "h must have the shape [4,2], got float32 [4,3]");
  EXPECT_EQ(backward(slice(h.view(), 0, 0, 3), next, dx, dh),
            back + "gates must have the shape [3,8], got float32 [4,8]");
  EXPECT_EQ(backward(h, {}, dx, dh), back + "dnext must be given");
  EXPECT_EQ(backward(h, next, dx, {}), back + "dh must be given");
  EXPECT_EQ(backward(h, next, dx, next), back + "dh must not overlap dnext");
  EXPECT_EQ(backward(h, next, dh, dh), back + "dx must have the shape [4,3], got float32 [4,2]");

  auto gradients = cell.zero_gradients();
  gradients.bias_ih = Tensor(kF32, {7});
  EXPECT_EQ(message_of([&] {
              cell.parameter_gradients(x, h, dgates, gradients, Write::kOverwrite, context);
            }),
            "GruCell::parameter_gradients: gradients.bias_ih must have the shape [6], got float32 "
            "[7]");
  EXPECT_EQ(
      message_of([&] { cell.parameter_gradients(x, h, h, gradients, Write::kOverwrite, context); }),
      "GruCell::parameter_gradients: dgates must have the shape [4,8], got float32 [4,2]");
}

TEST(GruErrors, SequencesNameTheArgument) {
  Gru gru({.input = 3, .hidden = 2, .bidirectional = true});
  initialise(gru, 1);
  const Tensor x = random_tensor(kF32, {4, 5, 3}, 1);
  Tensor out(kF32, {4, 5, 4}), state(kF32, {2, 4, 2});
  Gru::Saved saved;
  const std::string prefix = "Gru::forward: ";
  const auto forward = [&](const GruInputs& inputs, const GruOutputs& outputs) {
    return message_of([&] { gru.forward(inputs, saved, outputs); });
  };
  EXPECT_EQ(forward({}, {out, {}}), prefix + "x must have the shape [B,T,3]");
  EXPECT_EQ(forward({state}, {out, {}}),
            prefix + "x must have the shape [2,4,3], got float32 [2,4,2]");
  EXPECT_EQ(forward({x}, {}), prefix + "out must be given");
  EXPECT_EQ(forward({x}, {out, out}),
            prefix + "outputs.state must have the shape [2,4,2], got float32 [4,5,4]");
  EXPECT_EQ(forward({x, {}, state}, {out, state}),
            prefix + "outputs.state must not overlap inputs.state");
  const std::vector<std::int64_t> lengths{1, 2, 6, 0};
  EXPECT_EQ(forward({x, lengths}, {out, {}}), prefix + "lengths must be in 0..T = 5, got 6 at [2]");
  const std::vector<std::int32_t> negative{1, -1, 5, 0};
  EXPECT_EQ(forward({x, negative}, {out, {}}),
            prefix + "lengths must be in 0..T = 5, got -1 at [1]");
  auto gradients = gru.zero_gradients();
  EXPECT_EQ(message_of([&] {
              gru.backward(saved, {out, {}}, {}, gradients);
            }),
            "Gru::backward: saved must come from a forward pass");
}

TEST(GruErrors, PackedMustBeTheLayersOwn) {
  const Gru gru({.input = 3, .hidden = 2});
  const Tensor x = random_tensor(kF32, {4, 5, 3}, 1);
  Tensor out(kF32, {4, 5, 2});
  Context context;
  const auto forward = [&](const Gru::Packed& packed) {
    return message_of([&] { gru.forward({x}, packed, {out, {}}, context); });
  };
  EXPECT_EQ(forward(gru.pack(context)), "");
  const std::string message = "Gru::forward: packed must come from pack() of this layer";
  EXPECT_EQ(forward({}), message);
  EXPECT_EQ(forward({.config = gru.config()}), message);
  for (const GruConfig& config :
       {GruConfig{.input = 4, .hidden = 2}, GruConfig{.input = 3, .hidden = 1},
        GruConfig{.input = 3, .hidden = 2, .bidirectional = true},
        GruConfig{.input = 3, .hidden = 2, .dtype = kF64}}) {
    EXPECT_EQ(forward(Gru(config).pack(context)), message) << config.input << " " << config.hidden;
  }
}

// A Saved of a layer of other sizes is refused, and nothing of it is read.
TEST(GruErrors, SavedMustBeTheLayersOwn) {
  Gru gru({.input = 3, .hidden = 2});
  auto gradients = gru.zero_gradients();
  for (const GruConfig& config :
       {GruConfig{.input = 4, .hidden = 2}, GruConfig{.input = 3, .hidden = 1},
        GruConfig{.input = 3, .hidden = 2, .bidirectional = true},
        GruConfig{.input = 3, .hidden = 2, .dtype = kF64}}) {
    const Gru other(config);
    const Tensor x = random_tensor(config.dtype, {4, 5, config.input}, 1);
    Tensor out(config.dtype, {4, 5, other.directions() * config.hidden});
    Gru::Saved saved;
    other.forward({x}, saved, {out, {}});
    EXPECT_EQ(message_of([&] {
                gru.backward(saved, {Tensor(kF32, {4, 5, 2}), {}}, {}, gradients);
              }),
              "Gru::backward: saved must come from a forward pass of this layer")
        << config.input << " " << config.hidden;
  }
}

}  // namespace
}  // namespace qkv::test
