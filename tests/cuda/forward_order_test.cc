// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "cuda/device/words.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/forward_calls.h"
#include "tests/support/arrays.h"

// Tests that the kernels of tensor cores give equal bits (docs/cuda.md), in the emulator and on a
// device, if there is one: a row of out, lse and entropy does not depend on the other queries,
// heads and batch entries of a call, on masked keys, on strides, on packing, or on the order of
// threads.
namespace qkv::test {
namespace {

constexpr Index kB = 2, kH = 4, kG = 2, kTq = 150, kTk = 200, kD = 64;

// q [B,H,Tq,D] and k and v [B,G,Tk,D] of all calls, of kBFloat16.
struct Arrays {
  Guarded q{DType::kBFloat16, {kB, kH, kTq, kD}, Layout::kContiguous};
  Guarded k{DType::kBFloat16, {kB, kG, kTk, kD}, Layout::kContiguous};
  Guarded v{DType::kBFloat16, {kB, kG, kTk, kD}, Layout::kContiguous};
  Arrays() {
    Random random(1);
    q.fill_normal(random, 1.5);
    k.fill_normal(random, 1.5);
    v.fill_normal(random, 1);
  }
  // Puts NaNs and infinities in rows from `first` on in batch entry 0: in v of key head 0, and in k
  // of key head 1.
  void spoil(Index first) const {
    for (Index j = first; j < kTk; ++j) {
      const auto bad = BFloat16(j % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : INFINITY);
      v.view().at<BFloat16>({0, 0, j, j % kD}) = bad;
      k.view().at<BFloat16>({0, 1, j, 3}) = bad;
    }
  }
};

// out, lse and entropy as bits: [rows, E], [rows] and [rows].
struct Bits {
  std::vector<std::uint16_t> out;
  std::vector<std::uint32_t> lse, entropy;
  bool operator==(const Bits&) const = default;
};

struct Computed {
  Tensor out, lse, entropy, column_sums;
  // Returns `count` rows from `first` on of head h in batch entry b.
  Bits rows(Index b, Index h, Index first, Index count) const {
    Bits bits;
    const Index T = out.view().size(-2), E = out.view().size(-1), H = lse.view().size(1);
    const auto* o = static_cast<const std::uint16_t*>(out.view().data()) + ((b * H + h) * T) * E;
    const auto* l = static_cast<const std::uint32_t*>(lse.view().data()) + (b * H + h) * T;
    bits.out.assign(o + first * E, o + (first + count) * E);
    bits.lse.assign(l + first, l + first + count);
    const auto* e = static_cast<const std::uint32_t*>(entropy.view().data()) + (b * H + h) * T;
    bits.entropy.assign(e + first, e + first + count);
    return bits;
  }
  // Returns the bits of the column sums of head h in batch entry b.
  std::vector<std::uint32_t> columns(Index b, Index h) const {
    const ConstView sums = column_sums.view();
    const auto* c =
        static_cast<const std::uint32_t*>(sums.data()) + (b * sums.size(1) + h) * sums.size(2);
    return {c, c + sums.size(2)};
  }
};

// Returns two options for the kernels without soft-cap, bias, ALiBi and dropout, and one for the
// `_every` kernels, which have all of these.
std::vector<Options> all_options(const Guarded& bias, const Guarded& slopes) {
  return {Options{.masks = {Causal{}}}, Options{.masks = {Window{70, 0}}},
          Options{.softcap = 15,
                  .bias = bias.view(),
                  .alibi = slopes.view(),
                  .masks = {Causal{}},
                  .dropout = {0.3, 7}}};
}

class ForwardOrder : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
    Random random(2);
    bias_.fill_normal(random);
    slopes_.fill_normal(random, 0.1);
  }

  // `seed` chooses the emulator's order of threads and copies.
  static Computed compute(const ConstView& q, const ConstView& k, const ConstView& v,
                          const Options& options, std::uint32_t seed = 1) {
    Computed x{Tensor(DType::kBFloat16, {q.size(0), q.size(1), q.size(2), v.size(3)}),
               Tensor(DType::kFloat32, {q.size(0), q.size(1), q.size(2)}),
               Tensor(DType::kFloat32, {q.size(0), q.size(1), q.size(2)}),
               Tensor(DType::kFloat32, {q.size(0), q.size(1), k.size(2)})};
    const Outputs outputs{.out = x.out.view(),
                          .lse = x.lse.view(),
                          .entropy = x.entropy.view(),
                          .column_sums = x.column_sums.view()};
    attention_at(GetParam(), {q, k, v}, options, outputs, seed);
    return x;
  }

  Arrays arrays_;
  Guarded bias_{DType::kFloat32, {kTq, kTk}, Layout::kContiguous};
  Guarded slopes_{DType::kFloat32, {kH}, Layout::kContiguous};
};

TEST_P(ForwardOrder, OfThreadsAndCopiesDoesNotMatter) {
  for (const Options& options : all_options(bias_, slopes_)) {
    const Computed first = compute(arrays_.q, arrays_.k, arrays_.v, options, 1);
    for (std::uint32_t seed = 2; seed < 4; ++seed) {
      const Computed again = compute(arrays_.q, arrays_.k, arrays_.v, options, seed);
      for (Index b = 0; b < kB; ++b) {
        for (Index h = 0; h < kH; ++h) {
          EXPECT_EQ(again.rows(b, h, 0, kTq), first.rows(b, h, 0, kTq)) << seed;
          EXPECT_EQ(again.columns(b, h), first.columns(b, h)) << seed;
        }
      }
    }
  }
}

// A control: a sum to which threads add as they come differs from seed to seed.
TEST(OrderControl, ASumOfThreadsAsTheyCome) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  Random random(3);
  std::vector<float> terms(128);
  for (float& x : terms) x = static_cast<float>(random.normal());
  const auto sum_of = [&](std::uint32_t seed) {
    float sum = 0;
    emulate({.blocks = 1, .threads = 128, .seed = seed},
            [&] { sum += terms[static_cast<std::size_t>(cuda::thread_index())]; });
    return sum;
  };
  EXPECT_EQ(sum_of(1), sum_of(1));
  EXPECT_FALSE(sum_of(1) == sum_of(2) && sum_of(1) == sum_of(3));
}

// A control: threads do not run in ascending order, even if it may begin at any thread.
TEST(OrderControl, ThreadsRunInAnyOrder) {
  if (!why_no_emulator().empty()) GTEST_SKIP() << why_no_emulator();
  constexpr int kThreads = 128;
  std::vector<int> order;
  emulate({.blocks = 1, .threads = kThreads}, [&] { order.push_back(cuda::thread_index()); });
  ASSERT_EQ(order.size(), std::size_t{kThreads});
  int ascents = 0;
  for (std::size_t n = 1; n < order.size(); ++n) {
    ascents += order[n] == (order[n - 1] + 1) % kThreads ? 1 : 0;
  }
  EXPECT_LT(ascents, kThreads / 4);
}

TEST_P(ForwardOrder, OneQueryAloneEqualsAll) {
  const Options options{.masks = {Causal{}}};
  const Computed all = compute(arrays_.q, arrays_.k, arrays_.v, options);
  for (const Index i : {Index{0}, Index{1}, Index{63}, Index{64}, Index{100}, kTq - 1}) {
    // Decoding: the query sees the keys up to its own and no others.
    const Index keys = i + 1 + kTk - kTq;
    const Computed one =
        compute(slice(arrays_.q.view(), 2, i, i + 1), slice(arrays_.k.view(), 2, 0, keys),
                slice(arrays_.v.view(), 2, 0, keys), {});
    EXPECT_EQ(one.rows(1, 3, 0, 1), all.rows(1, 3, i, 1)) << i;
    EXPECT_EQ(one.rows(0, 0, 0, 1), all.rows(0, 0, i, 1)) << i;
  }
}

TEST_P(ForwardOrder, OtherHeadsAndEntriesDoNotMatter) {
  for (const Options& options : {Options{.masks = {Causal{}}}, Options{.softcap = 15}}) {
    const Computed all = compute(arrays_.q, arrays_.k, arrays_.v, options);
    // Heads 2 and 3 of batch entry 1 alone, which read key head 1.
    const auto part = [](const View& x, Index from, Index to) {
      return slice(slice(x, 0, 1, 2), 1, from, to);
    };
    const Computed own =
        compute(part(arrays_.q, 2, 4), part(arrays_.k, 1, 2), part(arrays_.v, 1, 2), options);
    for (Index h = 0; h < 2; ++h) {
      EXPECT_EQ(own.rows(0, h, 0, kTq), all.rows(1, 2 + h, 0, kTq));
      EXPECT_EQ(own.columns(0, h), all.columns(1, 2 + h));
    }
  }
}

TEST_P(ForwardOrder, KeysThatAreMaskedDoNotMatter) {
  // NaNs and infinities are in keys beyond the length of batch entry 0.
  const Guarded lengths(DType::kInt32, {kB}, Layout::kContiguous);
  lengths.view().at<std::int32_t>({0}) = 70;
  lengths.view().at<std::int32_t>({1}) = 131;
  for (const bool every : {false, true}) {
    Options options{.masks = {KeyLengths{lengths.view()}, Causal{}}};
    if (every) options.softcap = 20;
    const Computed clean = compute(arrays_.q, arrays_.k, arrays_.v, options);
    const Arrays spoiled;
    spoiled.spoil(70);
    const Computed same = compute(spoiled.q, spoiled.k, spoiled.v, options);
    for (Index h = 0; h < kH; ++h) {
      EXPECT_EQ(same.rows(0, h, 0, kTq), clean.rows(0, h, 0, kTq)) << h << every;
    }
  }
}

// NaNs and infinities are in keys from 131 on, which the diagonal hides from queries 0 to 80 alone.
TEST_P(ForwardOrder, KeysBeyondTheDiagonalDoNotMatter) {
  const Arrays spoiled;
  spoiled.spoil(131);
  for (const double softcap : {0.0, 20.0}) {
    const Options options{.softcap = softcap, .masks = {Causal{}}};
    const Computed clean = compute(arrays_.q, arrays_.k, arrays_.v, options);
    const Computed same = compute(spoiled.q, spoiled.k, spoiled.v, options);
    for (Index h = 0; h < kH; ++h) {
      EXPECT_EQ(same.rows(0, h, 0, 81), clean.rows(0, h, 0, 81)) << h << " " << softcap;
      EXPECT_NE(same.rows(0, h, 81, 1), clean.rows(0, h, 81, 1)) << h << " " << softcap;
    }
  }
}

// A score of -inf masks its pair as Keep does, whatever the key and the value are. Two of the three
// options have no mask: there, all queries of a block may attend to all keys of a tile.
TEST_P(ForwardOrder, ScoresOfMinusInfinityMask) {
  const Arrays clean, spoiled;
  const auto put = [](const Guarded& x, Index row, float number) {
    for (Index b = 0; b < kB; ++b) {
      for (Index h = 0; h < x.view().size(1); ++h) {
        x.view().at<BFloat16>({b, h, row, 0}) = BFloat16(number);
      }
    }
  };
  for (const Arrays* arrays : {&clean, &spoiled}) {
    for (Index i = 0; i < kTq; ++i) put(arrays->q, i, 1);
  }
  const Guarded keep(DType::kBool, {kTk}, Layout::kContiguous);
  for (Index j = 0; j < kTk; ++j) keep.view().at<bool>({j}) = true;
  for (const Index j : {3, 63, 64, 100, 199}) {
    keep.view().at<bool>({j}) = false;
    put(spoiled.k, j, -INFINITY);
    spoiled.v.view().at<BFloat16>({0, 0, j, j % kD}) =
        BFloat16(std::numeric_limits<float>::quiet_NaN());
    spoiled.v.view().at<BFloat16>({1, 1, j, j % kD}) = BFloat16(INFINITY);
  }
  for (const Options& options : {Options{}, Options{.masks = {Causal{}}},
                                 Options{.alibi = slopes_.view(), .dropout = {0.3, 7}}}) {
    const Computed got = compute(spoiled.q, spoiled.k, spoiled.v, options);
    Options with_keep = options;
    with_keep.masks.emplace_back(Keep{keep.view()});
    const Computed want = compute(clean.q, clean.k, clean.v, with_keep);
    for (Index b = 0; b < kB; ++b) {
      for (Index h = 0; h < kH; ++h) {
        EXPECT_EQ(got.rows(b, h, 0, kTq), want.rows(b, h, 0, kTq)) << b << " " << h;
        EXPECT_EQ(got.columns(b, h), want.columns(b, h)) << b << " " << h;
      }
    }
  }
}

TEST_P(ForwardOrder, PackingDoesNotMatter) {
  // Two sequences: 30 queries of 50 keys, and 140 of 190.
  const std::vector<Index> starts_q{0, 30, 170}, starts_k{0, 50, 240};
  const Tensor q = packed(arrays_.q, starts_q), k = packed(arrays_.k, starts_k);
  const Tensor v = packed(arrays_.v, starts_k);
  const Index rows = starts_q.back();
  for (const Options& options :
       {Options{.masks = {Causal{}}},
        Options{.softcap = 15, .alibi = slopes_.view(), .masks = {Window{70, 9}}}}) {
    Tensor out(DType::kBFloat16, {rows, kH, kD});
    Computed all{Tensor(), Tensor(DType::kFloat32, {1, kH, rows}),
                 Tensor(DType::kFloat32, {1, kH, rows}), Tensor()};
    attention_at(GetParam(), {q, k, v, starts_q, starts_k}, options,
                 {.out = out.view(),
                  .lse = reshape(all.lse.view(), {kH, rows}),
                  .entropy = reshape(all.entropy.view(), {kH, rows})});
    all.out = contiguous(transpose(reshape(out.view(), {1, rows, kH, kD}), 1, 2));
    for (std::size_t n = 0; n < 2; ++n) {
      const auto own = [&](const Guarded& x, const std::vector<Index>& starts) {
        const auto b = static_cast<Index>(n);
        return slice(slice(x.view(), 0, b, b + 1), 2, 0, starts[n + 1] - starts[n]);
      };
      const Computed one = compute(own(arrays_.q, starts_q), own(arrays_.k, starts_k),
                                   own(arrays_.v, starts_k), options);
      const Index count = starts_q[n + 1] - starts_q[n];
      for (Index h = 0; h < kH; ++h) {
        EXPECT_EQ(all.rows(0, h, starts_q[n], count), one.rows(0, h, 0, count)) << n << " " << h;
      }
    }
  }
}

TEST_P(ForwardOrder, StridesDoNotMatter) {
  const Options options{.masks = {Causal{}}};
  const Computed plain = compute(arrays_.q, arrays_.k, arrays_.v, options);
  // Rows of these layouts cannot be read 16 bytes at a time.
  Guarded k(DType::kBFloat16, {kB, kG, kTk, kD}, Layout::kSliced);
  Guarded v(DType::kBFloat16, {kB, kG, kTk, kD}, Layout::kPermuted);
  for (const auto& [from, to] : {std::pair{&arrays_.k, &k}, std::pair{&arrays_.v, &v}}) {
    for (Index b = 0; b < kB; ++b) {
      for (Index g = 0; g < kG; ++g) {
        for (Index j = 0; j < kTk; ++j) {
          for (Index c = 0; c < kD; ++c) {
            to->view().at<BFloat16>({b, g, j, c}) = from->view().at<BFloat16>({b, g, j, c});
          }
        }
      }
    }
  }
  const Computed strided = compute(arrays_.q, k, v, options);
  for (Index h = 0; h < kH; ++h) {
    EXPECT_EQ(strided.rows(1, h, 0, kTq), plain.rows(1, h, 0, kTq));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ForwardOrder, testing::Values(Place::kEmulator, Place::kDevice),
                         [](const auto& place) { return name_of(place.param); });

}  // namespace
}  // namespace qkv::test
