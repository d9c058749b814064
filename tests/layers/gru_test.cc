// SPDX-License-Identifier: Apache-2.0
#include "reference/gru.h"

#include <complex>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>
#include <qkv/layers/gru.h>

#include "runtime/tasks.h"
#include "tests/layers/gradients.h"
#include "tests/layers/support.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- the formula, sequence by sequence ------------------------------------------------------

// Computes one step with float64 parameters by the formula of qkv/layers/gru.h.
std::vector<double> plain_step(const GruParameters& p, const double* x,
                               const std::vector<double>& h) {
  const auto H = h.size();
  const auto I = static_cast<std::size_t>(p.weight_ih.size(1));
  const auto sum = [&](const Tensor& w, const Tensor& b, const double* v, std::size_t n,
                       std::size_t row) {
    double total = b.given() ? b.values<double>()[row] : 0;
    for (std::size_t c = 0; c < n; ++c) total += w.values<double>()[row * n + c] * v[c];
    return total;
  };
  const auto sigmoid = [](double s) { return 1 / (1 + std::exp(-s)); };
  std::vector<double> next(H);
  for (std::size_t u = 0; u < H; ++u) {
    const auto xs = [&](std::size_t g) { return sum(p.weight_ih, p.bias_ih, x, I, g * H + u); };
    const auto hs = [&](std::size_t g) {
      return sum(p.weight_hh, p.bias_hh, h.data(), H, g * H + u);
    };
    const double r = sigmoid(xs(0) + hs(0));
    const double z = sigmoid(xs(1) + hs(1));
    const double n = std::tanh(xs(2) + r * hs(2));
    next[u] = (1 - z) * n + z * h[u];
  }
  return next;
}

struct Batch {
  Tensor x, state;
  std::vector<Index> lengths;
};

Batch random_batch(const GruConfig& c, Index T, std::vector<Index> lengths, std::uint64_t seed) {
  const auto B = static_cast<Index>(lengths.size());
  const Index directions = c.bidirectional ? 2 : 1;
  return {random_tensor(c.dtype, {B, T, c.input}, seed),
          random_tensor(c.dtype, {directions, B, c.hidden}, seed + 1), std::move(lengths)};
}

struct Result {
  Tensor out, state;
};

Result run(const Gru& gru, const Batch& batch, Gru::Saved& saved, Context& context) {
  const Index B = batch.x.size(0);
  const Index H = gru.config().hidden;
  const DType dtype = gru.config().dtype;
  Result result{Tensor(dtype, {B, batch.x.size(1), gru.directions() * H}),
                Tensor(dtype, {gru.directions(), B, H})};
  // The previous contents of the buffers must not matter.
  fill_normal(result.out, 99);
  gru.forward({batch.x, batch.lengths, batch.state}, saved, {result.out, result.state}, context);
  return result;
}

Result run(const Gru& gru, const Batch& batch) {
  Gru::Saved saved;
  Context context;
  return run(gru, batch, saved, context);
}

TEST(Gru, IsTheFormulaOfEachSequence) {
  for (const bool bidirectional : {false, true}) {
    for (const bool bias : {false, true}) {
      const Gru gru = initialised(Gru({3, 5, bidirectional, bias, kF64}));
      const Batch batch = random_batch(gru.config(), 7, {7, 0, 1, 4}, 1);
      const Result got = run(gru, batch);
      std::vector<double> out(got.out.values<double>().size(), 0.0);
      std::vector<double> state;
      const std::size_t width = bidirectional ? 10 : 5;
      for (std::size_t direction = 0; direction < (bidirectional ? 2U : 1U); ++direction) {
        const GruParameters& p =
            direction == 0 ? gru.parameters().forward : gru.parameters().backward;
        for (std::size_t b = 0; b < 4; ++b) {
          const auto start = batch.state.values<double>().subspan((direction * 4 + b) * 5, 5);
          std::vector<double> h(start.begin(), start.end());
          const auto length = static_cast<std::size_t>(batch.lengths[b]);
          for (std::size_t n = 0; n < length; ++n) {
            const std::size_t t = direction == 0 ? n : length - 1 - n;
            h = plain_step(p, batch.x.values<double>().data() + (b * 7 + t) * 3, h);
            std::copy(
                h.begin(), h.end(),
                out.begin() + static_cast<std::ptrdiff_t>((b * 7 + t) * width + direction * 5));
          }
          state.insert(state.end(), h.begin(), h.end());
        }
      }
      const std::string replay = bidirectional ? "both directions" : "one direction";
      EXPECT_TRUE(compare("out", got.out, out, {1e-13, 1e-13}, replay));
      EXPECT_TRUE(compare("state", got.state, state, {1e-13, 1e-13}, replay));
    }
  }
}

// ---- gradients ------------------------------------------------------------------------------

TEST(Gru, GradientsAreDerivatives) {
  for (const bool bidirectional : {false, true}) {
    Gru gru = initialised(Gru({3, 4, bidirectional, true, kF64}));
    Batch batch = random_batch(gru.config(), 5, {5, 2, 0}, 7);
    const Index width = gru.directions() * 4;
    const Tensor d_out = random_tensor(kF64, {3, 5, width}, 8);
    const Tensor d_state = random_tensor(kF64, {gru.directions(), 3, 4}, 9);
    Gru::Saved saved;
    Context context;
    auto loss = [&] {
      const Result result = run(gru, batch, saved, context);
      return dot(result.out, d_out) + dot(result.state, d_state);
    };
    loss();
    Tensor dx(kF64, batch.x.shape());
    Tensor dh(kF64, batch.state.shape());
    auto gradients = gru.zero_gradients();
    gru.backward(saved, {d_out, d_state}, {dx, dh}, gradients);
    const std::string replay = bidirectional ? "both directions" : "one direction";
    expect_gradients({{"x", batch.x, dx}, {"state", batch.state, dh}}, gru, gradients, loss,
                     replay);
  }
}

// Compares reference::gru_backward() with the complex-step derivative of reference::gru_forward()
// (Squire and Trapp 1998), to the last digits.
TEST(Gru, ReferenceGatesAreDifferentiatedExactly) {
  using C = std::complex<double>;
  constexpr Index kHidden = 3;
  constexpr double kStep = 1e-200;
  const Tensor numbers = random_tensor(kF64, {8, kHidden}, 3);  // xs, hs, h, dnext
  const auto values = numbers.values<double>();
  std::vector<C> all(values.begin(), values.begin() + 7 * kHidden);
  const auto loss = [&] {
    std::vector<C> next(kHidden);
    reference::gru_forward<C>(all.data(), all.data() + 9, all.data() + 18, kHidden, next.data(),
                              nullptr);
    C sum = 0;
    for (std::size_t u = 0; u < kHidden; ++u) sum += next[u] * values[7 * kHidden + u];
    return sum;
  };
  std::vector<double> real(values.begin(), values.begin() + 7 * kHidden), gates(12), dgates(12);
  std::vector<double> next(kHidden), dh(kHidden);
  reference::gru_forward(real.data(), real.data() + 9, real.data() + 18, kHidden, next.data(),
                         gates.data());
  reference::gru_backward(gates.data(), real.data() + 18, values.data() + 21, kHidden,
                          dgates.data(), dh.data());
  for (std::size_t n = 0; n < all.size(); ++n) {
    all[n] += C(0, kStep);
    const double want = loss().imag() / kStep;
    all[n] = real[n];
    // `all` holds xs and hs, each (r, z, n), and h. xs and hs share the gradients of r and z.
    const double got = n < 9    ? dgates[n]
                       : n < 15 ? dgates[n - 9]
                       : n < 18 ? dgates[n - 6]
                                : dh[n - 18];
    EXPECT_NEAR(got, want, 1e-15) << n;
  }
}

// ---- paths, threads, other rows -------------------------------------------------------------

template <class T>
void expect_close(const std::string& what, const Tensor& a, const Tensor& b, double bound) {
  for (std::size_t n = 0; n < a.values<T>().size(); ++n) {
    ASSERT_NEAR(a.values<T>()[n], b.values<T>()[n], bound) << what << " " << n;
  }
}

TEST(Gru, KernelsAgreeWithPlainLoops) {
  for (const DType dtype : {DType::kFloat32, kF64}) {
    // Sizes slightly exceed whole registers, blocks of 24 rows and blocks of 64 steps.
    for (const Index hidden : {1, 17, 33}) {
      const Gru gru = initialised(Gru({5, hidden, true, true, dtype}));
      const Batch batch = random_batch(gru.config(), 67, std::vector<Index>(25, 66), 2);
      const Tensor d_out = random_tensor(dtype, {25, 67, 2 * hidden}, 3);
      std::vector<Tensor> all[2];
      for (const int forced : {0, 1}) {
        Context context;
        if (forced == 1) context.force_path("reference");
        Gru::Saved saved;
        Result result = run(gru, batch, saved, context);
        Tensor dx(dtype, batch.x.shape());
        auto gradients = gru.zero_gradients();
        gru.backward(saved, {d_out, {}}, {dx, {}}, gradients, context);
        all[forced].push_back(std::move(result.out));
        all[forced].push_back(std::move(dx));
        for_each_parameter(gradients, [&](auto& p) { all[forced].push_back(std::move(p.value)); });
      }
      for (std::size_t n = 0; n < all[0].size(); ++n) {
        double largest = 0;
        for (const double value : values_of(all[1][n])) {
          largest = std::max(largest, std::fabs(value));
        }
        const std::string what = std::to_string(n) + " hidden " + std::to_string(hidden);
        if (dtype == kF64) {
          expect_close<double>(what, all[0][n], all[1][n], 1e-12 * largest);
        } else {
          expect_close<float>(what, all[0][n], all[1][n], 2e-5 * largest);
        }
      }
    }
  }
}

// A pass that saves nothing gives the bits of one that saves, in kernels and plain loops.
TEST(Gru, PackedPassesHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, kF64}) {
    for (const bool both : {false, true}) {
      for (const std::string_view path : {"", "reference"}) {
        const Gru gru = initialised(Gru({5, 20, both, true, dtype}));
        const Batch batch = random_batch(gru.config(), 72, {70, 0, 3, 66}, 4);
        Context context;
        if (!path.empty()) context.force_path(path);
        Gru::Saved saved;
        const Result with = run(gru, batch, saved, context);
        Result without{Tensor(dtype, with.out.shape()), Tensor(dtype, with.state.shape())};
        fill_normal(without.out, 99);
        gru.forward({batch.x, batch.lengths, batch.state}, gru.pack(context),
                    {without.out, without.state}, context);
        EXPECT_EQ(bytes_of(without.out), bytes_of(with.out));
        EXPECT_EQ(bytes_of(without.state), bytes_of(with.state));
      }
    }
  }
}

TEST(Gru, BitsDoNotDependOnThreadsOrNeighbours) {
  const Gru gru = initialised(Gru({6, 20, true, true, DType::kFloat32}));
  std::vector<Index> lengths;
  for (Index b = 0; b < 60; ++b) lengths.push_back(b % 10);
  const Batch batch = random_batch(gru.config(), 9, lengths, 2);
  const Tensor d_out = random_tensor(DType::kFloat32, {60, 9, 40}, 3);
  std::vector<std::uint8_t> first;
  for (const int threads : {1, 3}) {
    Context context(Executor::threads(threads));
    Gru::Saved saved;
    const Result result = run(gru, batch, saved, context);
    Tensor dx(DType::kFloat32, batch.x.shape());
    auto gradients = gru.zero_gradients();
    gru.backward(saved, {d_out, {}}, {dx, {}}, gradients, context);
    std::vector<std::uint8_t> bytes = all_bytes(gradients);
    add_bytes(bytes, {&result.out, &result.state, &dx});
    if (threads == 1) {
      first = bytes;
      // Entry 59 is computed alone, without padding.
      const Index length = lengths[59];
      const Batch alone{contiguous(slice(slice(ConstView(batch.x), 0, 59, 60), 1, 0, length)),
                        contiguous(slice(ConstView(batch.state), 1, 59, 60)),
                        {length}};
      const Result one = run(gru, alone);
      const Tensor part = contiguous(slice(slice(ConstView(result.out), 0, 59, 60), 1, 0, length));
      EXPECT_EQ(bytes_of(one.out), bytes_of(part));
    } else {
      EXPECT_EQ(first, bytes);
    }
  }
}

TEST(Gru, RepeatedPassesAllocateNothingLarge) {
  const Gru gru = initialised(Gru({6, 20, true, true, kF64}));
  const Batch batch = random_batch(gru.config(), 9, {9, 4}, 2);
  const Tensor d_out = random_tensor(kF64, {2, 9, 40}, 3);
  Context context;
  Gru::Saved saved;
  Tensor dx(kF64, batch.x.shape());
  auto gradients = gru.zero_gradients();
  std::size_t scratch_bytes = 0;
  const void* saved_x = nullptr;
  for (int repeat = 0; repeat < 3; ++repeat) {
    run(gru, batch, saved, context);
    gru.backward(saved, {d_out, {}}, {dx, {}}, gradients, context);
    if (repeat > 0) {
      EXPECT_EQ(context.scratch_bytes(), scratch_bytes);
      EXPECT_EQ(saved.x.view().data(), saved_x);
    }
    scratch_bytes = context.scratch_bytes();
    saved_x = saved.x.view().data();
    EXPECT_GE(scratch_bytes, 2u * 2 * 9 * 80 * 8);  // the gates' gradients [2,2,9,80] of 8 bytes
  }
}

TEST(Gru, NumbersBehindASequenceAreNeverUsed) {
  const Gru gru = initialised(Gru({3, 4, true, true, kF64}));
  Batch batch = random_batch(gru.config(), 6, {2, 6}, 5);
  Tensor d_out = random_tensor(kF64, {2, 6, 8}, 6);
  Gru::Saved saved;
  Context context;
  const auto all = [&] {
    Result result = run(gru, batch, saved, context);
    Tensor dx(kF64, batch.x.shape());
    auto gradients = gru.zero_gradients();
    {  // numbers that an earlier call left in the memory
      constexpr std::size_t kBytes = 1 << 14;
      const runtime::BorrowedMemory borrowed(context, kBytes);
      std::memset(borrowed.memory(), 0xff, kBytes);  // NaN
    }
    gru.backward(saved, {d_out, {}}, {dx, {}}, gradients, context);
    std::vector<std::uint8_t> bytes = all_bytes(gradients);
    add_bytes(bytes, {&result.out, &result.state, &dx});
    for (Index t = 2; t < 6; ++t) {
      for (Index c = 0; c < 8; ++c) EXPECT_EQ(result.out.view().at<double>({0, t, c}), 0);
      for (Index c = 0; c < 3; ++c) EXPECT_EQ(dx.view().at<double>({0, t, c}), 0);
    }
    return bytes;
  };
  const auto want = all();
  for (Index t = 2; t < 6; ++t) {
    for (Index c = 0; c < 3; ++c) batch.x.view().at<double>({0, t, c}) = kNaN;
    for (Index c = 0; c < 8; ++c) d_out.view().at<double>({0, t, c}) = kNaN;
  }
  EXPECT_EQ(all(), want);
}

TEST(Gru, StridedArraysAndAccumulatedGradients) {
  const Gru gru = initialised(Gru({3, 4, true, true, kF64}));
  const Batch batch = random_batch(gru.config(), 6, {2, 6}, 5);
  const Result want = run(gru, batch);
  // x and out are [T,B,.] in memory, and the channels of x are two apart.
  Tensor x(kF64, {6, 2, 6});
  const View strided = slice(permute(x, {1, 0, 2}), 2, 0, 6, 2);
  copy(batch.x, strided);
  Tensor out(kF64, {6, 2, 8});
  Gru::Saved saved;
  gru.forward({strided, batch.lengths, batch.state}, saved, {permute(out, {1, 0, 2}), {}});
  EXPECT_EQ(values_of(contiguous(permute(out, {1, 0, 2}))), values_of(want.out));

  const Tensor d_out = random_tensor(kF64, {2, 6, 8}, 6);
  Tensor dx(kF64, batch.x.shape());
  auto gradients = gru.zero_gradients();
  gru.backward(saved, {d_out, {}}, {dx, {}}, gradients);
  const auto once = values_of(dx);
  const auto once_w = values_of(gradients.backward.weight_hh);
  gru.backward(saved, {d_out, {}}, {dx, {}, Write::kAccumulate}, gradients);
  for (std::size_t n = 0; n < once.size(); ++n) EXPECT_EQ(values_of(dx)[n], 2 * once[n]);
  for (std::size_t n = 0; n < once_w.size(); ++n) {
    EXPECT_EQ(values_of(gradients.backward.weight_hh)[n], 2 * once_w[n]);
  }
}

// ---- the cell -------------------------------------------------------------------------------

TEST(GruCell, StepsAreThoseOfTheSequence) {
  for (const DType dtype : {DType::kFloat32, kF64}) {
    Gru gru = initialised(Gru({3, 18, false, true, dtype}));
    GruCell cell(3, 18, true, dtype);
    EXPECT_EQ(names_of(cell), (std::vector<std::string>{"weight_ih [54,3]", "weight_hh [54,18]",
                                                        "bias_ih [54]", "bias_hh [54]"}));
    for_each_parameter(cell, gru.parameters().forward,
                       [](const auto& p, const Tensor& from) { copy(from, p.value); });
    const Batch batch = random_batch(gru.config(), 4, std::vector<Index>(26, 4), 2);
    Gru::Saved saved;
    Context context;
    const Result want = run(gru, batch, saved, context);
    const Tensor d_out = random_tensor(dtype, {26, 4, 18}, 3);
    Tensor want_dx(dtype, batch.x.shape());
    Tensor want_dh(dtype, batch.state.shape());
    auto want_gradients = gru.zero_gradients();
    gru.backward(saved, {d_out, {}}, {want_dx, want_dh}, want_gradients, context);

    // The steps of the sequence are computed one by one, with states in one array [5,26,18] and
    // gates in [4,26,72].
    const GruCell::Steps steps(cell, context);
    Tensor states(dtype, {5, 26, 18});
    Tensor gates(dtype, {4, 26, 72});
    Tensor dgates(dtype, {4, 26, 72});
    Tensor x = contiguous(permute(ConstView(batch.x), {1, 0, 2}));
    Tensor dx(dtype, x.shape());
    const auto at = [](Tensor& tensor, Index t) {
      return reshape(slice(tensor, 0, t, t + 1), {26, tensor.size(2)});
    };
    copy(batch.state, slice(states, 0, 0, 1));
    for (Index t = 0; t < 4; ++t) {
      steps.forward(at(x, t), at(states, t), at(states, t + 1), at(gates, t));
    }
    EXPECT_EQ(values_of(contiguous(permute(slice(states, 0, 1, 5), {1, 0, 2}))),
              values_of(want.out));
    Tensor dh[2] = {Tensor(dtype, {26, 18}), Tensor(dtype, {26, 18})};
    for (Index t = 3; t >= 0; --t) {
      Tensor sum =
          contiguous(reshape(slice(permute(ConstView(d_out), {1, 0, 2}), 0, t, t + 1), {26, 18}));
      // The gradient of a state is its d_out plus the dh of the next step.
      for (Index n = 0; n < 26 * 18; ++n) {
        if (dtype == kF64) {
          sum.values<double>()[static_cast<std::size_t>(n)] +=
              dh[0].values<double>()[static_cast<std::size_t>(n)];
        } else {
          sum.values<float>()[static_cast<std::size_t>(n)] +=
              dh[0].values<float>()[static_cast<std::size_t>(n)];
        }
      }
      steps.backward(at(gates, t), at(states, t), sum, at(dx, t), dh[1], at(dgates, t));
      std::swap(dh[0], dh[1]);
    }
    EXPECT_EQ(values_of(contiguous(permute(dx, {1, 0, 2}))), values_of(want_dx));
    EXPECT_EQ(values_of(dh[0]), values_of(want_dh));
    auto gradients = cell.zero_gradients();
    cell.parameter_gradients(reshape(x, {104, 3}), reshape(slice(states, 0, 0, 4), {104, 18}),
                             reshape(dgates, {104, 72}), gradients, Write::kOverwrite, context);
    const double bound = dtype == kF64 ? 1e-13 : 3e-5;  // rows are summed in another order
    for_each_parameter(gradients, want_gradients.forward, [&](const auto& p, const Tensor& want_d) {
      EXPECT_TRUE(compare(p.name, p.value, values_of(want_d), {bound, bound}, "cell"));
    });
  }
}

}  // namespace
}  // namespace qkv::test
