// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "core/storage.h"
#include "tests/cuda/forward_calls.h"
#include "tests/support/arrays.h"
#include "tests/support/compare.h"

// Tests that the gradient kernels of tensor cores give equal bits (docs/cuda.md), in the emulator
// and on a device, if there is one. A row of dq does not depend on other queries, heads and batch
// entries, nor on masked keys. dk and dv of a key do not depend on other key heads and batch
// entries, nor on masked queries, and on other keys only through out and lse. No gradient depends
// on strides, packing or the order of threads. Sums are added in ascending order.
namespace qkv::test {
namespace {

constexpr Index kB = 2, kH = 4, kG = 2, kTq = 90, kTk = 140, kD = 64;

using Bits = std::vector<std::uint16_t>;

// Returns the bits of an array's elements in C order.
Bits bits_of(const ConstView& x) {
  const Tensor all = contiguous(x);
  const auto* data = static_cast<const std::uint16_t*>(all.view().data());
  return {data, data + all.view().element_count()};
}

// Returns the bits of rows first .. end-1 of head h in batch entry b.
Bits rows_of(const Tensor& x, Index b, Index h, Index first, Index end) {
  const ConstView one = slice(slice(x.view(), 0, b, b + 1), 1, h, h + 1);
  return bits_of(slice(one, 2, first, end));
}

// The gradients of a call; those of bias, slopes and sinks are absent if the call has none.
struct Computed {
  Tensor dq, dk, dv;
  Tensor dbias{}, dalibi{}, dsinks{};
};

struct Call {
  ConstView q, k, v, dout;
  Options options{};
  ConstView dlse{};
  std::uint32_t seed = 1;  // chooses the emulator's order of threads and copies
};

class GradientOrder : public testing::TestWithParam<std::pair<Place, DType>> {
 protected:
  GradientOrder() {
    Random random(1);
    for (Guarded* x : {&q_, &dout_, &k_, &v_}) x->fill_normal(random, 1.2);
    bias_.fill_normal(random);
    slopes_.fill_normal(random, 0.1);
    sinks_.fill_normal(random);
  }
  void SetUp() override {
    const std::string reason = why_not(place());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static Place place() { return GetParam().first; }
  static DType dtype() { return GetParam().second; }

  static Computed compute(const Call& call) {
    Tensor out(dtype(), call.dout.given() ? call.dout.shape() : call.q.shape());
    Tensor lse(DType::kFloat32, {call.q.size(0), call.q.size(1), call.q.size(2)});
    attention_at(place(), {call.q, call.k, call.v}, call.options,
                 {.out = out.view(), .lse = lse.view()}, call.seed);
    Computed to{Tensor(dtype(), call.q.shape()), Tensor(dtype(), call.k.shape()),
                Tensor(dtype(), call.v.shape())};
    InputGradients gradients{.q = to.dq.view(), .k = to.dk.view(), .v = to.dv.view()};
    const auto ask = [](const ConstView& of, Tensor& tensor, View& gradient) {
      if (!of.given()) return;
      tensor = Tensor(of.dtype(), of.shape());
      gradient = tensor.view();
    };
    ask(call.options.bias, to.dbias, gradients.bias);
    ask(call.options.alibi, to.dalibi, gradients.alibi);
    ask(call.options.sinks, to.dsinks, gradients.sinks);
    backward_at(place(), {call.q, call.k, call.v}, call.options, {out.view(), lse.view()},
                {.out = call.dout, .lse = call.dlse}, gradients, call.seed);
    return to;
  }
  Call plain(const Options& options = {}) const {
    return {q_.view(), k_.view(), v_.view(), dout_.view(), options};
  }
  // Returns two options that are only a mask, and one with options of many kinds.
  std::vector<Options> all_options() const {
    return {Options{.masks = {Causal{}}}, Options{.masks = {Window{50, 0}}},
            Options{.softcap = 15,
                    .bias = bias_.view(),
                    .alibi = slopes_.view(),
                    .masks = {Causal{}},
                    .sinks = sinks_.view(),
                    .dropout = {0.3, 7}}};
  }
  static Guarded array(const Dims& shape) { return {dtype(), shape, Layout::kContiguous}; }
  static Guarded copy_of(const Guarded& x, Layout layout = Layout::kContiguous) {
    Guarded to(dtype(), x.view().shape(), layout);
    to.fill(values_of(x.view()));
    return to;
  }

  Guarded q_ = array({kB, kH, kTq, kD});
  Guarded k_ = array({kB, kG, kTk, kD});
  Guarded v_ = array({kB, kG, kTk, kD});
  Guarded dout_ = array({kB, kH, kTq, kD});
  Guarded bias_{DType::kFloat32, {kTq, kTk}, Layout::kContiguous};
  Guarded slopes_{DType::kFloat32, {kH}, Layout::kContiguous};
  Guarded sinks_{DType::kFloat32, {kH}, Layout::kContiguous};
};

void expect_equal(const Computed& x, const Computed& y) {
  EXPECT_EQ(bits_of(x.dq.view()), bits_of(y.dq.view()));
  EXPECT_EQ(bits_of(x.dk.view()), bits_of(y.dk.view()));
  EXPECT_EQ(bits_of(x.dv.view()), bits_of(y.dv.view()));
  const auto words = [](const Tensor& of) {
    if (!of.view().given()) return std::vector<std::uint32_t>();
    const std::span<const float> all = of.values<float>();
    std::vector<std::uint32_t> bits(all.size());
    std::ranges::transform(all, bits.begin(),
                           [](float a) { return std::bit_cast<std::uint32_t>(a); });
    return bits;
  };
  EXPECT_EQ(words(x.dbias), words(y.dbias));
  EXPECT_EQ(words(x.dalibi), words(y.dalibi));
  EXPECT_EQ(words(x.dsinks), words(y.dsinks));
}

TEST_P(GradientOrder, OfThreadsAndCopiesDoesNotMatter) {
  for (const Options& options : all_options()) {
    Call call = plain(options);
    const Computed first = compute(call);
    call.seed = 2;
    expect_equal(compute(call), first);
  }
}

TEST_P(GradientOrder, OneQueryAloneEqualsAll) {
  const Computed all = compute(plain({.masks = {Causal{}}}));
  for (const Index i : {Index{63}, Index{64}, kTq - 1}) {
    // The query sees the keys up to its own and no others.
    const Index keys = i + 1 + kTk - kTq;
    const auto row = [&](const Guarded& x) { return slice(x.view(), 2, i, i + 1); };
    const Computed one =
        compute({row(q_), slice(k_.view(), 2, 0, keys), slice(v_.view(), 2, 0, keys), row(dout_)});
    EXPECT_EQ(rows_of(one.dq, 1, 3, 0, 1), rows_of(all.dq, 1, 3, i, i + 1)) << i;
    EXPECT_EQ(rows_of(one.dq, 0, 0, 0, 1), rows_of(all.dq, 0, 0, i, i + 1)) << i;
  }
}

TEST_P(GradientOrder, OtherHeadsAndEntriesDoNotMatter) {
  for (const Options& options : {Options{.masks = {Causal{}}}, Options{.softcap = 15}}) {
    const Computed all = compute(plain(options));
    // Heads 2 and 3 of batch entry 1 alone, which read key head 1.
    const auto part = [](const Guarded& x, Index from, Index to) {
      return slice(slice(x.view(), 0, 1, 2), 1, from, to);
    };
    const Computed own =
        compute({part(q_, 2, 4), part(k_, 1, 2), part(v_, 1, 2), part(dout_, 2, 4), options});
    for (Index h = 0; h < 2; ++h) {
      EXPECT_EQ(rows_of(own.dq, 0, h, 0, kTq), rows_of(all.dq, 1, 2 + h, 0, kTq));
    }
    EXPECT_EQ(rows_of(own.dk, 0, 0, 0, kTk), rows_of(all.dk, 1, 1, 0, kTk));
    EXPECT_EQ(rows_of(own.dv, 0, 0, 0, kTk), rows_of(all.dv, 1, 1, 0, kTk));
  }
}

// NaNs and infinities are in keys beyond a length, and in queries that may attend to no key.
TEST_P(GradientOrder, RowsThatAreMaskedDoNotMatter) {
  Guarded lengths(DType::kInt32, {kB, kTq}, Layout::kContiguous);
  std::vector<double> numbers(static_cast<std::size_t>(kB * kTq), 70);
  for (const Index i : {5, 70, 89}) numbers[static_cast<std::size_t>(i)] = 0;  // of entry 0
  lengths.fill(numbers);
  for (const double softcap : {0.0, 20.0}) {
    const Options options{.softcap = softcap, .masks = {KeyLengths{lengths.view()}, Causal{}}};
    const Computed clean = compute(plain(options));
    const auto put = [&](const Guarded& x, Index h, Index row, float number) {
      const View at = slice(slice(slice(x.view(), 0, 0, 1), 1, h, h + 1), 2, row, row + 1);
      const View one = slice(at, 3, row % kD, row % kD + 1);
      core::store(dtype(), one.data(), 0, static_cast<double>(number));
    };
    const float kNan = std::numeric_limits<float>::quiet_NaN();
    const Guarded q = copy_of(q_), k = copy_of(k_), v = copy_of(v_), dout = copy_of(dout_);
    for (Index j = 70; j < kTk; ++j) {
      put(k, 0, j, j % 2 == 0 ? kNan : INFINITY);
      put(v, 1, j, j % 3 == 0 ? kNan : INFINITY);
    }
    for (const Index i : {5, 70, 89}) {
      put(q, 1, i, kNan);
      put(dout, 2, i, i == 5 ? kNan : INFINITY);
    }
    const Computed same = compute({q.view(), k.view(), v.view(), dout.view(), options});
    expect_equal(same, clean);
  }
}

// A score of -inf masks its pair as Keep does, whatever the key and the value are.
TEST_P(GradientOrder, ScoresOfMinusInfinityMask) {
  const Guarded q = copy_of(q_), spoiled_k = copy_of(k_), spoiled_v = copy_of(v_);
  const auto put = [](const Guarded& x, Index row, Index channel, double number) {
    for (Index b = 0; b < kB; ++b) {
      for (Index h = 0; h < x.view().size(1); ++h) {
        core::store(dtype(), x.view().data(),
                    ((b * x.view().size(1) + h) * x.view().size(2) + row) * kD + channel, number);
      }
    }
  };
  for (Index i = 0; i < kTq; ++i) put(q, i, 0, 1);
  const Guarded keep(DType::kBool, {kTk}, Layout::kContiguous);
  for (Index j = 0; j < kTk; ++j) keep.view().at<bool>({j}) = true;
  for (const Index j : {3, 63, 64, 139}) {
    keep.view().at<bool>({j}) = false;
    put(spoiled_k, j, 0, -std::numeric_limits<double>::infinity());
    put(spoiled_v, j, j % kD, std::numeric_limits<double>::quiet_NaN());
  }
  for (const Options& options : {Options{}, Options{.masks = {Causal{}}}}) {
    Options with_keep = options;
    with_keep.masks.emplace_back(Keep{keep.view()});
    expect_equal(compute({q.view(), spoiled_k.view(), spoiled_v.view(), dout_.view(), options}),
                 compute({q.view(), k_.view(), v_.view(), dout_.view(), with_keep}));
  }
}

TEST_P(GradientOrder, OtherKeysDoNotMatter) {
  const Computed all = compute(plain());
  // out and lse are those of the call with all keys, so that weights are equal.
  const auto keys = [&](const Guarded& x) { return slice(x.view(), 2, 64, 135); };
  Tensor out(dtype(), q_.view().shape());
  Tensor lse(DType::kFloat32, {kB, kH, kTq});
  attention_at(place(), {q_.view(), k_.view(), v_.view()}, {},
               {.out = out.view(), .lse = lse.view()});
  Computed some{Tensor(dtype(), q_.view().shape()), Tensor(dtype(), keys(k_).shape()),
                Tensor(dtype(), keys(v_).shape())};
  backward_at(place(), {q_.view(), keys(k_), keys(v_)}, {}, {out.view(), lse.view()},
              {.out = dout_.view()}, {.k = some.dk.view(), .v = some.dv.view()});
  EXPECT_EQ(rows_of(some.dk, 1, 1, 0, 71), rows_of(all.dk, 1, 1, 64, 135));
  EXPECT_EQ(rows_of(some.dv, 1, 1, 0, 71), rows_of(all.dv, 1, 1, 64, 135));
}

TEST_P(GradientOrder, StridesDoNotMatter) {
  const Options options{.masks = {Causal{}}};
  const Computed same = compute(plain(options));
  // Rows of these layouts cannot be read 16 bytes at a time.
  const Guarded q = copy_of(q_, Layout::kSliced), k = copy_of(k_, Layout::kSliced);
  const Guarded v = copy_of(v_, Layout::kPermuted), dout = copy_of(dout_, Layout::kNegative);
  expect_equal(compute({q.view(), k.view(), v.view(), dout.view(), options}), same);
}

// The gradients of a key head that two heads read are those for one head with the queries of both.
TEST_P(GradientOrder, HeadsAscendAsQueriesDo) {
  constexpr Index kRows = 64;  // a block of queries
  const auto heads = [&](const Guarded& x) {
    return slice(slice(slice(x.view(), 0, 0, 1), 1, 0, 2), 2, 0, kRows);
  };
  const auto rows = [&](const Tensor& x) {
    return ConstView(x.view().data(), dtype(), {1, 1, 2 * kRows, kD},
                     contiguous_strides({1, 1, 2 * kRows, kD}));
  };
  const Tensor q = contiguous(heads(q_)), dout = contiguous(heads(dout_));
  const View k = slice(slice(k_.view(), 0, 0, 1), 1, 0, 1);
  const View v = slice(slice(v_.view(), 0, 0, 1), 1, 0, 1);
  const Computed two = compute({q.view(), k, v, dout.view()});
  const Computed one = compute({rows(q), k, v, rows(dout)});
  EXPECT_EQ(bits_of(two.dk.view()), bits_of(one.dk.view()));
  EXPECT_EQ(bits_of(two.dv.view()), bits_of(one.dv.view()));
}

// Batch entries and heads that share a matrix of the bias add to its gradient in ascending order:
// only then does the sum of a large number, its negative and a small one keep the small one.
TEST_P(GradientOrder, HeadsOfABiasAscend) {
  constexpr Index kRows = 4;
  for (const Dims& leading : {Dims{3, 1}, Dims{1, 3}}) {
    Dims rows = leading;
    rows.push_back(kRows);
    Dims shape = rows;
    shape.push_back(8);
    const Guarded zeros(dtype(), shape, Layout::kContiguous);
    const Guarded bias(DType::kFloat32, {kRows, kRows}, Layout::kContiguous);
    Tensor dlse(DType::kFloat32, rows);
    const float numbers[] = {0x1p14F, -0x1p14F, 0x1p-12F};
    for (std::size_t n = 0; n < 3; ++n) {
      for (std::size_t i = 0; i < kRows; ++i) {  // weights are 1 / kRows
        dlse.values<float>()[n * kRows + i] = kRows * numbers[n];
      }
    }
    const Computed got =
        compute({zeros.view(), zeros.view(), zeros.view(), {}, {.bias = bias.view()}, dlse.view()});
    for (const float x : got.dbias.values<float>()) EXPECT_EQ(x, 0x1p-12F);
  }
}

// dsinks and dalibi are float64 sums over queries and batch entries: in any order, the sum of a
// large number, its negative and a small one keeps the small one.
TEST_P(GradientOrder, SumsOfHeadsAreFloat64) {
  constexpr Index kRows = 300;
  const Guarded zeros(dtype(), {3, 1, kRows, 8}, Layout::kContiguous);
  const Guarded numbers(DType::kFloat32, {1}, Layout::kContiguous);
  const ConstView keys = slice(zeros.view(), 2, 0, 1);  // key and sink have the weight 1/2
  for (const Index first : {0, 130, 299}) {
    Tensor dlse(DType::kFloat32, {3, 1, kRows});
    const auto at = [&](Index b, Index i) -> float& {
      return dlse.values<float>()[static_cast<std::size_t>(b * kRows + i)];
    };
    at(0, first) = 0x1p30F;
    at(1, first) = at(1, (first + 17) % kRows) = 0x1p-10F;
    at(2, first) = -0x1p30F;
    const Computed got =
        compute({zeros.view(),
                 keys,
                 keys,
                 {},
                 {.diagonal = Offset{1}, .alibi = numbers.view(), .sinks = numbers.view()},
                 dlse.view()});
    EXPECT_FLOAT_EQ(got.dsinks.values<float>()[0], 0x1p-10F);
    // Query i has the distance i + 1 from the key.
    const Index distances = first + 1 + (first + 17) % kRows + 1;
    EXPECT_FLOAT_EQ(got.dalibi.values<float>()[0], -0x1p-11F * static_cast<float>(distances));
  }
}

// Returns rows [1,1,rows,8] in tiles of `stride` rows. The first three tiles begin with a large
// number, its negative, and a small one; all else is 0. Only a sum over tiles in ascending order
// keeps the small number.
Guarded cancelling(DType dtype, Index rows, Index stride) {
  Guarded x(dtype, {1, 1, rows, 8}, Layout::kContiguous);
  const double numbers[] = {0x1p14, -0x1p14, 0x1p-12};
  std::vector<double> all(static_cast<std::size_t>(rows * 8), 0);
  for (Index n = 0; n < 3; ++n) all[static_cast<std::size_t>(n * stride * 8)] = numbers[n];
  x.fill(all);
  return x;
}
double first_of(const Tensor& x) { return values_of(x.view())[0]; }

TEST_P(GradientOrder, TilesAscend) {
  constexpr Index kTile = 64, kRows = 4 * kTile;
  const Guarded zeros(dtype(), {1, 1, kRows, 8}, Layout::kContiguous);
  const Guarded large = cancelling(dtype(), kRows, kTile);
  Tensor dlse(DType::kFloat32, {1, 1, kRows});
  for (float& x : dlse.values<float>()) x = kRows;  // weights are 1 / kRows, and ds is 1
  Call call{zeros.view(), large.view(), zeros.view(), {}, {.score = Dot{}}, dlse.view()};
  EXPECT_EQ(first_of(compute(call).dq), 0x1p-12);
  std::swap(call.q, call.k);
  EXPECT_EQ(first_of(compute(call).dk), 0x1p-12);
  const Call values{zeros.view(), zeros.view(), zeros.view(), large.view()};
  EXPECT_EQ(first_of(compute(values).dv), 0x1p-12 / kRows);
}

TEST_P(GradientOrder, PackingDoesNotMatter) {
  // Two sequences: 30 queries of 50 keys, and 90 of 140.
  const std::vector<Index> starts_q{0, 30, 120}, starts_k{0, 50, 190};
  const Tensor q = packed(q_, starts_q), k = packed(k_, starts_k), v = packed(v_, starts_k);
  const Tensor dout = packed(dout_, starts_q);
  const Options options{.masks = {Causal{}}};
  const Inputs inputs{q, k, v, starts_q, starts_k};
  Tensor out(dtype(), q.view().shape()), lse(DType::kFloat32, {kH, starts_q.back()});
  attention_at(place(), inputs, options, {.out = out.view(), .lse = lse.view()});
  Computed all{Tensor(dtype(), q.view().shape()), Tensor(dtype(), k.view().shape()),
               Tensor(dtype(), v.view().shape())};
  backward_at(place(), inputs, options, {out.view(), lse.view()}, {.out = dout.view()},
              {.q = all.dq.view(), .k = all.dk.view(), .v = all.dv.view()});
  for (std::size_t at = 0; at < 2; ++at) {
    const auto b = static_cast<Index>(at);
    const auto own = [&](const Guarded& x, const std::vector<Index>& starts) {
      return slice(slice(x.view(), 0, b, b + 1), 2, 0, starts[at + 1] - starts[at]);
    };
    const Computed one = compute(
        {own(q_, starts_q), own(k_, starts_k), own(v_, starts_k), own(dout_, starts_q), options});
    const auto part = [&](const Tensor& x, const std::vector<Index>& starts) {
      return bits_of(transpose(slice(x.view(), 0, starts[at], starts[at + 1]), 0, 1));
    };
    EXPECT_EQ(part(all.dq, starts_q), bits_of(one.dq.view())) << b;
    EXPECT_EQ(part(all.dk, starts_k), bits_of(one.dk.view())) << b;
    EXPECT_EQ(part(all.dv, starts_k), bits_of(one.dv.view())) << b;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GradientOrder,
                         testing::Values(std::pair(Place::kEmulator, DType::kBFloat16),
                                         std::pair(Place::kEmulator, DType::kFloat16),
                                         std::pair(Place::kDevice, DType::kBFloat16),
                                         std::pair(Place::kDevice, DType::kFloat16)),
                         [](const auto& one) {
                           return name_of(one.param.first) +
                                  (one.param.second == DType::kFloat16 ? "Float16" : "BFloat16");
                         });

}  // namespace
}  // namespace qkv::test
