// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "cuda/device/additive.h"
#include "tests/cuda/emulated_attention.h"
#include "tests/cuda/forward_calls.h"
#include "tests/support/arrays.h"
#include "tests/support/in_blocks.h"

// Tests that the float32 kernels of dot products and of the additive score give equal bits, in the
// emulator and on a device, if there is one: a row of out, lse and dq does not depend on the other
// queries, heads and batch entries of a call, on masked keys (however large their projections), on
// strides, on packing, or on the order of threads. Sums have the order of docs/cuda.md.
namespace qkv::test {
namespace {

constexpr Index kB = 2, kH = 4, kG = 2, kTq = 70, kTk = 100, kD = 20, kE = 24, kU = 37;

Guarded drawn(const Dims& shape, std::uint32_t seed, double deviation,
              Layout layout = Layout::kContiguous) {
  Random random(seed);
  Guarded x(DType::kFloat32, shape, layout);
  x.fill_normal(random, deviation);
  return x;
}

// The bits of float32 numbers.
using Bits = std::vector<std::uint32_t>;

struct Computed {
  Tensor out, lse;
  // Returns the bits of out and lse of query i of head h in batch entry b.
  Bits row(Index b, Index h, Index i) const {
    const Index H = lse.view().size(1), T = lse.view().size(2);
    const auto* o =
        static_cast<const std::uint32_t*>(out.view().data()) + ((b * H + h) * T + i) * kE;
    Bits bits(o, o + kE);
    bits.push_back(static_cast<const std::uint32_t*>(lse.view().data())[(b * H + h) * T + i]);
    return bits;
  }
};

// The gradients of q, k and v and, if the score is additive, of its parameters (du is that of v).
struct Derived {
  Tensor dq, dk, dv;
  Tensor dwq{}, dwk{}, du{}, db{};
};

// Returns the bits of an array in C order; none if it is absent.
Bits bits_of(const ConstView& x) {
  if (!x.given()) return {};
  const Tensor all = contiguous(x);
  const auto* const words = static_cast<const std::uint32_t*>(all.view().data());
  return {words, words + all.view().element_count()};
}

void expect_equal(const Derived& x, const Derived& y) {
  EXPECT_EQ(bits_of(x.dq), bits_of(y.dq));
  EXPECT_EQ(bits_of(x.dk), bits_of(y.dk));
  EXPECT_EQ(bits_of(x.dv), bits_of(y.dv));
  EXPECT_EQ(bits_of(x.dwq), bits_of(y.dwq));
  EXPECT_EQ(bits_of(x.dwk), bits_of(y.dwk));
  EXPECT_EQ(bits_of(x.du), bits_of(y.du));
  EXPECT_EQ(bits_of(x.db), bits_of(y.db));
}

enum class Kind { kDot, kAdditive };

class FloatOrder : public testing::TestWithParam<std::pair<Place, Kind>> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(place());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static Place place() { return GetParam().first; }
  static bool is_additive() { return GetParam().second == Kind::kAdditive; }
  // Returns options with the score under test, whose projections have a standard deviation of about
  // 1 if it is additive.
  Options options(std::vector<Mask> masks = {}) const {
    Options x;
    if (is_additive()) x.score = Additive{wq_, wk_, u_, b_};
    x.masks = std::move(masks);
    return x;
  }
  // Causal attention with a soft-cap, a bias, slopes and dropout.
  Options every() const {
    Options x = options({Causal{}});
    x.softcap = 4;
    x.bias = bias_.view();
    x.alibi = slopes_.view();
    x.dropout = {0.3, 7};
    return x;
  }
  Computed compute(const ConstView& q, const ConstView& k, const ConstView& v,
                   const Options& options, std::uint32_t seed = 1) const {
    Computed x{Tensor(DType::kFloat32, {q.size(0), q.size(1), q.size(2), v.size(3)}),
               Tensor(DType::kFloat32, {q.size(0), q.size(1), q.size(2)})};
    attention_at(place(), {q, k, v}, options, {.out = x.out.view(), .lse = x.lse.view()}, seed);
    return x;
  }
  // Computes the forward pass, and the gradients that follow from dout and from a dlse of 1.
  Derived derive(const ConstView& q, const ConstView& k, const ConstView& v, const ConstView& dout,
                 const Options& options, std::uint32_t seed = 1) const {
    const Computed saved = compute(q, k, v, options, seed);
    Tensor dlse(DType::kFloat32, saved.lse.view().shape());
    for (float& x : dlse.values<float>()) x = 1;
    return derive({q, k, v}, {saved.out.view(), saved.lse.view()}, {dout, dlse.view()}, options,
                  seed);
  }
  Derived derive(const Inputs& inputs, const Saved& saved, const OutputGradients& from,
                 const Options& options, std::uint32_t seed = 1) const {
    const auto like = [](const ConstView& x) { return Tensor(DType::kFloat32, x.shape()); };
    Derived to{like(inputs.q), like(inputs.k), like(inputs.v)};
    InputGradients gradients{.q = to.dq.view(), .k = to.dk.view(), .v = to.dv.view()};
    if (const auto* score = std::get_if<Additive>(&options.score)) {
      to.dwq = like(score->wq);
      to.dwk = like(score->wk);
      to.du = like(score->v);
      to.db = like(score->b);
      gradients.score = Additive::Gradient{
          .wq = to.dwq.view(), .wk = to.dwk.view(), .v = to.du.view(), .b = to.db.view()};
    }
    backward_at(place(), inputs, options, saved, from, gradients, seed);
    return to;
  }
  // Expects equal bits of out and lse in all rows.
  void expect_equal(const Computed& x, const Computed& y) const {
    for (Index b = 0; b < kB; ++b) {
      for (Index h = 0; h < kH; ++h) {
        for (Index i = 0; i < kTq; ++i) {
          ASSERT_EQ(x.row(b, h, i), y.row(b, h, i)) << b << " " << h << " " << i;
        }
      }
    }
  }

  Guarded q_ = drawn({kB, kH, kTq, kD}, 1, 1);
  Guarded k_ = drawn({kB, kG, kTk, kD}, 2, 1);
  Guarded v_ = drawn({kB, kG, kTk, kE}, 3, 1);
  Guarded dout_ = drawn({kB, kH, kTq, kE}, 10, 1);
  Guarded wq_ = drawn({kH, kU, kD}, 4, 0.22);
  Guarded wk_ = drawn({kU, kD}, 5, 0.22);
  Guarded u_ = drawn({kU}, 6, 0.5);
  Guarded b_ = drawn({kU}, 7, 1);
  Guarded bias_ = drawn({kTq, kTk}, 8, 1);
  Guarded slopes_ = drawn({kH}, 9, 0.1);
};

TEST(AdditiveUnits, AreSummedInChunksOf32AndChannelsInBlocksOf64) {
  if (!why_not(Place::kEmulator).empty()) GTEST_SKIP() << why_not(Place::kEmulator);
  constexpr Index D = 150, U = 101, T = 3;
  // Some projections are beyond the bound up to which their exponentials are multiplied.
  const Guarded q = drawn({T, D}, 1, 1), k = drawn({T, D}, 2, 1);
  const Guarded wq = drawn({U, D}, 3, 2), wk = drawn({U, D}, 4, 2), u = drawn({U}, 5, 1);
  Tensor row_max(DType::kFloat32, {T});
  // The window leaves each query one key, so that row_max is the score of this pair.
  const Options options{.score = Additive{wq, wk, u}, .masks = {Window{0, 0}}};
  emulated_attention({q, k}, options, {.row_max = row_max.view()});
  int beyond = 0;
  for (Index i = 0; i < T; ++i) {
    const auto projected = [&](const Guarded& w, const Guarded& x, Index unit) {
      return sum_in_blocks<float>(D, [&](Index c, float sum) {
        return std::fma(x.view().at<float>({i, c}), w.view().at<float>({unit, c}), sum);
      });
    };
    const auto with_unit = [&](Index unit, float sum) {
      const float x = projected(wq, q, unit), y = projected(wk, k, unit);
      const bool plain = cuda::is_plain(x) && cuda::is_plain(y);
      beyond += plain ? 0 : 1;
      const float denominator =
          plain ? std::fma(cuda::squared_exponential(x), cuda::squared_exponential(y), 1.0F)
                : 1 + cuda::exp2_of((x + y) * (2 * cuda::kLog2E));
      const float r = cuda::reciprocal(denominator);
      return std::fma(u.view().at<float>({unit}), 0.5F - r, sum);
    };
    const float half = sum_in_blocks<float>(U, with_unit, 32);
    EXPECT_EQ(row_max.view().at<float>({i}), 2 * half) << i;
  }
  EXPECT_GT(beyond, 10);
}

TEST_P(FloatOrder, OfThreadsAndCopiesDoesNotMatter) {
  for (const Options& one : {options({Causal{}}), every()}) {
    const Computed first = compute(q_, k_, v_, one, 1);
    for (std::uint32_t seed = 2; seed < 4; ++seed) {
      expect_equal(compute(q_, k_, v_, one, seed), first);
    }
    test::expect_equal(derive(q_, k_, v_, dout_, one, 2), derive(q_, k_, v_, dout_, one, 1));
  }
}

TEST_P(FloatOrder, OneQueryAloneEqualsAll) {
  const Computed all = compute(q_, k_, v_, options({Causal{}}));
  const Derived gradients = derive(q_, k_, v_, dout_, options({Causal{}}));
  for (const Index i : {Index{0}, Index{1}, Index{33}, Index{34}, Index{64}, kTq - 1}) {
    // Decoding: the query sees the keys up to its own and no others.
    const Index keys = i + 1 + kTk - kTq;
    const Computed one = compute(slice(q_.view(), 2, i, i + 1), slice(k_.view(), 2, 0, keys),
                                 slice(v_.view(), 2, 0, keys), options());
    EXPECT_EQ(one.row(1, 3, 0), all.row(1, 3, i)) << i;
    EXPECT_EQ(one.row(0, 0, 0), all.row(0, 0, i)) << i;
    if (i != 33 && i != kTq - 1) continue;
    const Derived own =
        derive(slice(q_.view(), 2, i, i + 1), slice(k_.view(), 2, 0, keys),
               slice(v_.view(), 2, 0, keys), slice(dout_.view(), 2, i, i + 1), options());
    EXPECT_EQ(bits_of(own.dq), bits_of(slice(gradients.dq.view(), 2, i, i + 1))) << i;
  }
}

TEST_P(FloatOrder, OtherHeadsAndEntriesDoNotMatter) {
  const Computed all = compute(q_, k_, v_, options({Window{20, 3}}));
  // Heads 2 and 3 of batch entry 1 alone, which read key head 1.
  const auto part = [](const ConstView& x, Index from, Index to) {
    return slice(slice(x, 0, 1, 2), 1, from, to);
  };
  Options own = options({Window{20, 3}});
  if (is_additive()) own.score = Additive{slice(wq_.view(), 0, 2, 4), wk_, u_, b_};
  const Computed two =
      compute(part(q_.view(), 2, 4), part(k_.view(), 1, 2), part(v_.view(), 1, 2), own);
  for (Index h = 0; h < 2; ++h) {
    for (Index i = 0; i < kTq; ++i) ASSERT_EQ(two.row(0, h, i), all.row(1, 2 + h, i)) << h << i;
  }
  const Derived whole = derive(q_, k_, v_, dout_, options({Window{20, 3}}));
  const Derived some = derive(part(q_.view(), 2, 4), part(k_.view(), 1, 2), part(v_.view(), 1, 2),
                              part(dout_.view(), 2, 4), own);
  EXPECT_EQ(bits_of(some.dq), bits_of(part(whole.dq.view(), 2, 4)));
  EXPECT_EQ(bits_of(some.dk), bits_of(part(whole.dk.view(), 1, 2)));
  EXPECT_EQ(bits_of(some.dv), bits_of(part(whole.dv.view(), 1, 2)));
}

TEST_P(FloatOrder, LargeProjectionsOfOtherRowsDoNotMatter) {
  const Computed plain = compute(q_, k_, v_, options({Causal{}}));
  // The last query and the last key, which no other query sees, have projections of about 1e3.
  Guarded q = drawn({kB, kH, kTq, kD}, 1, 1);
  Guarded k = drawn({kB, kG, kTk, kD}, 2, 1);
  for (Index b = 0; b < kB; ++b) {
    for (Index c = 0; c < kD; ++c) {
      for (Index h = 0; h < kH; ++h) q.view().at<float>({b, h, kTq - 1, c}) *= 1000;
      for (Index g = 0; g < kG; ++g) k.view().at<float>({b, g, kTk - 1, c}) *= 1000;
    }
  }
  const Computed large = compute(q, k, v_, options({Causal{}}));
  for (Index i = 0; i < kTq - 1; ++i) ASSERT_EQ(large.row(1, 2, i), plain.row(1, 2, i)) << i;
  EXPECT_NE(large.row(1, 2, kTq - 1), plain.row(1, 2, kTq - 1));
}

// Writes NaN and infinity to keys and values of batch entry 0 from key `first` on.
void plant_non_finite(const Guarded& k, const Guarded& v, Index first) {
  for (Index j = first; j < kTk; ++j) {
    const float bad = j % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : INFINITY;
    v.view().at<float>({0, 0, j, j % kE}) = bad;
    k.view().at<float>({0, 1, j, 3}) = bad;
  }
}

TEST_P(FloatOrder, KeysThatAreMaskedDoNotMatter) {
  // Infinities and NaNs are in keys of batch entry 0 beyond its length.
  const Guarded lengths(DType::kInt32, {kB}, Layout::kContiguous);
  lengths.view().at<std::int32_t>({0}) = 41;
  lengths.view().at<std::int32_t>({1}) = 77;
  const Options options = this->options({KeyLengths{lengths.view()}, Causal{}});
  const Computed clean = compute(q_, k_, v_, options);
  Guarded k = drawn({kB, kG, kTk, kD}, 2, 1);
  Guarded v = drawn({kB, kG, kTk, kE}, 3, 1);
  plant_non_finite(k, v, 41);
  expect_equal(compute(q_, k, v, options), clean);
  // The first 10 queries, whose keys all lie beyond the diagonal, have NaNs and infinities in batch
  // entry 0, too.
  Options shifted = options;
  shifted.diagonal = Offset{-10};
  Guarded q = drawn({kB, kH, kTq, kD}, 1, 1), dout = drawn({kB, kH, kTq, kE}, 10, 1);
  for (Index i = 0; i < 10; ++i) {
    q.view().at<float>({0, 2, i, 1}) = std::numeric_limits<float>::quiet_NaN();
    dout.view().at<float>({0, 3, i, 2}) = INFINITY;
  }
  test::expect_equal(derive(q, k, v, dout, shifted), derive(q_, k_, v_, dout_, shifted));
}

// Keys from 80 on, which the diagonal masks for queries 0 to 49 only, have infinities and NaNs.
TEST_P(FloatOrder, KeysBeyondTheDiagonalDoNotMatter) {
  const Options options = this->options({Causal{}});
  Guarded k = drawn({kB, kG, kTk, kD}, 2, 1);
  Guarded v = drawn({kB, kG, kTk, kE}, 3, 1);
  plant_non_finite(k, v, 80);
  const Computed clean = compute(q_, k_, v_, options), spoiled = compute(q_, k, v, options);
  const Derived clean_gradients = derive(q_, k_, v_, dout_, options);
  const Derived spoiled_gradients = derive(q_, k, v, dout_, options);
  const auto dq = [](const Derived& x, Index h, Index from, Index to) {
    return bits_of(slice(slice(slice(x.dq.view(), 0, 0, 1), 1, h, h + 1), 2, from, to));
  };
  for (Index h = 0; h < kH; ++h) {
    for (Index i = 0; i < 50; ++i) {
      ASSERT_EQ(spoiled.row(0, h, i), clean.row(0, h, i)) << h << " " << i;
    }
    EXPECT_NE(spoiled.row(0, h, 50), clean.row(0, h, 50)) << h;
    EXPECT_EQ(dq(spoiled_gradients, h, 0, 50), dq(clean_gradients, h, 0, 50)) << h;
    EXPECT_NE(dq(spoiled_gradients, h, 50, 51), dq(clean_gradients, h, 50, 51)) << h;
  }
}

// A score of -inf masks its pair as Keep does, whatever the key and the value are. The additive
// score of such a key is a sum of 40 units that overflows: tanh is 1 in each unit, and 0 for other
// keys.
TEST_P(FloatOrder, ScoresOfMinusInfinityMask) {
  const auto first_channel = [](const Guarded& x, Index row) {
    return slice(slice(x.view(), 2, row, row + 1), 3, 0, 1);
  };
  const auto put = [](const View& x, float number) {
    for (Index b = 0; b < x.size(0); ++b) {
      for (Index h = 0; h < x.size(1); ++h) x.at<float>({b, h, 0, 0}) = number;
    }
  };
  Guarded q = drawn({kB, kH, kTq, kD}, 1, 1);
  Guarded k = drawn({kB, kG, kTk, kD}, 2, 1);
  Guarded spoiled_k = drawn({kB, kG, kTk, kD}, 2, 1);
  Guarded spoiled_v = drawn({kB, kG, kTk, kE}, 3, 1);
  for (Index i = 0; i < kTq; ++i) put(first_channel(q, i), 1);
  if (is_additive()) {
    for (const Guarded* x : {&k, &spoiled_k}) {
      for (Index j = 0; j < kTk; ++j) put(first_channel(*x, j), 0);
    }
  }
  const Guarded keep(DType::kBool, {kTk}, Layout::kContiguous);
  for (Index j = 0; j < kTk; ++j) keep.view().at<bool>({j}) = true;
  for (const Index j : {3, 40, 63, 64, 99}) {
    keep.view().at<bool>({j}) = false;
    put(first_channel(spoiled_k, j), is_additive() ? 100 : -INFINITY);
    spoiled_v.view().at<float>({0, 0, j, j % kE}) = std::numeric_limits<float>::quiet_NaN();
    spoiled_v.view().at<float>({1, 1, j, j % kE}) = INFINITY;
  }
  constexpr Index kUnits = 40;
  const Tensor wq(DType::kFloat32, {kUnits, kD}), b(DType::kFloat32, {kUnits});
  Tensor wk(DType::kFloat32, {kUnits, kD}), u(DType::kFloat32, {kUnits});
  for (Index unit = 0; unit < kUnits; ++unit) {
    wk.view().at<float>({unit, 0}) = 1;
    u.view().at<float>({unit}) = -2e37F;
  }
  Options options;
  if (is_additive()) options.score = Additive{wq, wk, u, b};
  Options with_keep = options;
  with_keep.masks = {Keep{keep.view()}};
  expect_equal(compute(q, spoiled_k, spoiled_v, options), compute(q, k, v_, with_keep));
  const Derived got = derive(q, spoiled_k, spoiled_v, dout_, options);
  const Derived want = derive(q, k, v_, dout_, with_keep);
  EXPECT_EQ(bits_of(got.dq), bits_of(want.dq));
  EXPECT_EQ(bits_of(got.dk), bits_of(want.dk));
  EXPECT_EQ(bits_of(got.dv), bits_of(want.dv));
}

// dk and dv of a key depend on other keys through out and lse alone, which both calls share.
TEST_P(FloatOrder, OtherKeysDoNotMatter) {
  const Computed saved = compute(q_, k_, v_, options());
  const Saved views{saved.out.view(), saved.lse.view()};
  const Derived all = derive({q_, k_, v_}, views, {.out = dout_.view()}, options());
  const auto keys = [](const ConstView& x) { return slice(x, 2, 64, 90); };
  const Derived some =
      derive({q_, keys(k_.view()), keys(v_.view())}, views, {.out = dout_.view()}, options());
  EXPECT_EQ(bits_of(some.dk), bits_of(keys(all.dk.view())));
  EXPECT_EQ(bits_of(some.dv), bits_of(keys(all.dv.view())));
}

TEST_P(FloatOrder, StridesDoNotMatter) {
  const Computed plain = compute(q_, k_, v_, every());
  Guarded k = drawn({kB, kG, kTk, kD}, 2, 1, Layout::kSliced);
  Guarded v = drawn({kB, kG, kTk, kE}, 3, 1, Layout::kPermuted);
  Guarded bias = drawn({kTq, kTk}, 8, 1, Layout::kNegative);
  Options options = every();
  options.bias = bias.view();
  expect_equal(compute(q_, k, v, options), plain);
  const Guarded dout = drawn({kB, kH, kTq, kE}, 10, 1, Layout::kNegative);
  test::expect_equal(derive(q_, k, v, dout, options), derive(q_, k_, v_, dout_, every()));
}

TEST_P(FloatOrder, PackingDoesNotMatter) {
  // The first sequence is 5 queries and 9 keys of batch entry 0, the second is all of entry 1.
  const std::vector<Index> starts_q{0, 5, 5 + kTq}, starts_k{0, 9, 9 + kTk};
  const Tensor q = packed(q_, starts_q), k = packed(k_, starts_k), v = packed(v_, starts_k);
  const Options options = this->options({Causal{}});
  const Computed plain = compute(q_, k_, v_, options);
  Tensor out(DType::kFloat32, {5 + kTq, kH, kE}), lse(DType::kFloat32, {kH, 5 + kTq});
  attention_at(place(), {q, k, v, starts_q, starts_k}, options,
               {.out = out.view(), .lse = lse.view()});
  for (Index h = 0; h < kH; ++h) {
    for (Index i = 0; i < kTq; ++i) {
      const auto* o =
          static_cast<const std::uint32_t*>(out.view().data()) + ((5 + i) * kH + h) * kE;
      Bits bits(o, o + kE);
      bits.push_back(static_cast<const std::uint32_t*>(lse.view().data())[h * (5 + kTq) + 5 + i]);
      ASSERT_EQ(bits, plain.row(1, h, i)) << h << " " << i;
    }
  }
  const Tensor dout = packed(dout_, starts_q);
  const Derived all = derive({q, k, v, starts_q, starts_k}, {out.view(), lse.view()},
                             {.out = dout.view()}, options);
  const auto entry = [](const ConstView& x) { return slice(x, 0, 1, 2); };
  const Derived one = derive({entry(q_.view()), entry(k_.view()), entry(v_.view())},
                             {entry(plain.out.view()), entry(plain.lse.view())},
                             {.out = entry(dout_.view())}, options);
  const auto second = [](const Tensor& x, Index first) {
    return bits_of(transpose(slice(x.view(), 0, first, x.view().size(0)), 0, 1));
  };
  EXPECT_EQ(second(all.dq, 5), bits_of(one.dq));
  EXPECT_EQ(second(all.dk, 9), bits_of(one.dk));
  EXPECT_EQ(second(all.dv, 9), bits_of(one.dv));
}

INSTANTIATE_TEST_SUITE_P(Of, FloatOrder,
                         testing::Values(std::pair(Place::kEmulator, Kind::kDot),
                                         std::pair(Place::kEmulator, Kind::kAdditive),
                                         std::pair(Place::kDevice, Kind::kDot),
                                         std::pair(Place::kDevice, Kind::kAdditive)),
                         [](const auto& one) {
                           const bool dot = one.param.second == Kind::kDot;
                           return name_of(one.param.first) + (dot ? "Dot" : "Additive");
                         });

// ---- sums in the order of docs/cuda.md ----------------------------------------------------------

class AdditiveSums : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static Tensor ones(const Dims& shape) {
    Tensor x(DType::kFloat32, shape);
    std::ranges::fill(x.values<float>(), 1.0F);
    return x;
  }
  // Returns the only number of x.
  static float only(const Tensor& x) { return x.values<float>()[0]; }

  struct Gradients {
    Tensor dwq, dwk, du, db;
  };
  // Returns the gradients of the parameters, given dlse. The score has one unit, whose projections
  // of q and k are 0. Each key and the sink have equal scores tanh(b), and so equal weights. With
  // one key, the gradient of a score is half of dlse. At b = 0, tanh is 0 and its derivative is 1;
  // at b = 100, tanh is 1 and its derivative is 0.
  static Gradients unit_gradients(const Tensor& q, const Tensor& k, const Tensor& dlse,
                                  double b = 0) {
    const Index B = q.size(0), H = q.size(1), T = q.size(2);
    const Tensor one = ones({1}), zero(DType::kFloat32, {1, 1});
    Guarded sinks(DType::kFloat32, {H}, Layout::kContiguous);
    sinks.fill(std::vector<double>(static_cast<std::size_t>(H), std::tanh(b)));
    Guarded added(DType::kFloat32, {1}, Layout::kContiguous);
    added.fill(std::vector<double>{b});
    const Options options{.score = Additive{zero, zero, one, added}, .sinks = sinks.view()};
    Tensor out(DType::kFloat32, {B, H, T, 1}), lse(DType::kFloat32, {B, H, T});
    attention_at(GetParam(), {q, k, k}, options, {.out = out.view(), .lse = lse.view()});
    const auto zeros = [](const Dims& shape) { return Tensor(DType::kFloat32, shape); };
    Gradients to{zeros({1, 1}), zeros({1, 1}), zeros({1}), zeros({1})};
    InputGradients gradients;
    gradients.score = Additive::Gradient{
        .wq = to.dwq.view(), .wk = to.dwk.view(), .v = to.du.view(), .b = to.db.view()};
    backward_at(GetParam(), {q, k, k}, options, {out.view(), lse.view()}, {.lse = dlse.view()},
                gradients);
    return to;
  }
};

// out adds up the sums of tiles, each of which starts from zero. A tile has 64 keys, or 32 if v has
// more than 128 channels. The sum of a large number, its negative and a small one keeps the small
// one only if the first two are in one tile.
TEST_P(AdditiveSums, OfValuesAreSumsOfTiles) {
  for (const Index E : {Index{1}, Index{70}, Index{128}, Index{200}}) {
    const std::size_t block = E > 128 ? 32 : 64;
    const Tensor q(DType::kFloat32, {1, 4}), k(DType::kFloat32, {66, 4});  // equal weights
    Tensor v(DType::kFloat32, {66, E}), out(DType::kFloat32, {1, E});
    const auto sum = [&](std::size_t large, std::size_t negative, std::size_t small) {
      std::ranges::fill(v.values<float>(), 0.0F);
      const auto row = v.values<float>().begin();
      const auto fill = [&](std::size_t j, float x) {
        std::fill_n(row + static_cast<std::ptrdiff_t>(j) * E, E, x);
      };
      fill(large, 0x1p14F);
      fill(negative, -0x1p14F);
      fill(small, 0x1p-12F);
      attention_at(GetParam(), {q.view(), k.view(), v.view()}, {}, {.out = out.view()});
      EXPECT_EQ(out.values<float>()[0], out.values<float>()[static_cast<std::size_t>(E) - 1]);
      return out.values<float>()[0] * 66;
    };
    EXPECT_EQ(sum(0, block, block + 1), 0) << E;
    EXPECT_FLOAT_EQ(sum(0, block - 1, block), 0x1p-12F) << E;
  }
}

// Three batch entries or heads contribute a large number, its negative and a small one. dWq and dWk
// are float32 sums in ascending order, which keep the small number only if it is last. db and the
// gradient of the parameter v are float64 sums, which always keep it.
TEST_P(AdditiveSums, OfMatricesAscendAndOfVectorsAreFloat64) {
  constexpr Index kRows = 3;
  for (const Dims& leading : {Dims{3, 1}, Dims{1, 3}}) {
    Dims shape = leading;
    shape.push_back(kRows);
    Tensor dlse(DType::kFloat32, shape);
    shape.push_back(1);
    const Tensor q = ones(shape);
    shape[2] = 1;
    const Tensor k = ones(shape);
    const float numbers[] = {0x1p14F, -0x1p14F, 0x1p-12F};
    for (std::size_t n = 0; n < 3; ++n) dlse.values<float>()[n * kRows + 1] = 2 * numbers[n];
    const Gradients got = unit_gradients(q, k, dlse);
    EXPECT_FLOAT_EQ(only(got.dwq), 0x1p-12F);
    EXPECT_FLOAT_EQ(only(got.dwk), 0x1p-12F);
    EXPECT_FLOAT_EQ(only(got.db), 0x1p-12F);
    EXPECT_FLOAT_EQ(only(unit_gradients(q, k, dlse, 100).du), 0x1p-12F);
    // The small number is first.
    std::swap(dlse.values<float>()[1], dlse.values<float>()[2 * kRows + 1]);
    const Gradients swapped = unit_gradients(q, k, dlse);
    EXPECT_EQ(only(swapped.dwq), 0);
    EXPECT_EQ(only(swapped.dwk), 0);
    EXPECT_FLOAT_EQ(only(swapped.db), 0x1p-12F);
    EXPECT_FLOAT_EQ(only(unit_gradients(q, k, dlse, 100).du), 0x1p-12F);
  }
}

// dWq and dWk add up the sums of blocks of 64 rows, each of which starts from zero. Row 0 of 66 is
// a large number, another row its negative, and row 65 a small number; the others are 0. The total
// keeps the small number only if the first two are in one block. All gradients of scores are equal.
TEST_P(AdditiveSums, OfMatricesHaveBlocksOf64Rows) {
  const auto rows = [](std::size_t negative) {
    Tensor x(DType::kFloat32, {1, 1, 66, 1});
    x.values<float>()[0] = 0x1p14F;
    x.values<float>()[negative] = -0x1p14F;
    x.values<float>()[65] = 0x1p-12F;
    return x;
  };
  const Tensor one = ones({1, 1, 1, 1});
  const Tensor of_queries = ones({1, 1, 66}), of_query = ones({1, 1, 1});
  // With one key, weights are 1/2; with 66 and the sink, 1/67.
  EXPECT_EQ(only(unit_gradients(rows(64), one, of_queries).dwq), 0);
  EXPECT_FLOAT_EQ(only(unit_gradients(rows(63), one, of_queries).dwq), 0x1p-13F);
  EXPECT_EQ(only(unit_gradients(one, rows(64), of_query).dwk), 0);
  EXPECT_NEAR(only(unit_gradients(one, rows(63), of_query).dwk), 0x1p-12 / 67, 0x1p-12 / 67 * 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Of, AdditiveSums, testing::Values(Place::kEmulator, Place::kDevice),
                         [](const auto& place) { return name_of(place.param); });

}  // namespace
}  // namespace qkv::test
