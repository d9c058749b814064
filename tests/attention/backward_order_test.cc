// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/path_runner.h"
#include "tests/support/compare.h"

// Continues path_order_test.cc: gradients do not depend on packing or on other requested gradients,
// and masked non-finite numbers affect neither results nor gradients.
namespace qkv::test {
namespace {

// Sequences of a packed call equal those of a padded call, in which rows past a sequence's end are
// empty.
TEST(BackwardPathOrder, PackedIsPadded) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const std::vector<Index> queries{130, 0, 7, 200};
    const std::vector<Index> keys{260, 5, 129, 64};
    const auto B = static_cast<Index>(queries.size());
    const SeededCall x(B, 4, 2, 200, 260, 8, 12, walk);
    std::vector<Index> cu_q{0}, cu_k{0}, offsets, lengths;
    for (std::size_t b = 0; b < queries.size(); ++b) {
      cu_q.push_back(cu_q.back() + queries[b]);
      cu_k.push_back(cu_k.back() + keys[b]);
      offsets.push_back(keys[b] - queries[b]);
      for (Index i = 0; i < 200; ++i) lengths.push_back(i < queries[b] ? keys[b] : 0);
    }
    // Extracts the rows that belong to sequences: from [B,heads,T,C] as [sum T,heads,C], from
    // [B,heads,T] as [heads,sum T].
    const auto packed = [&](const ConstView& t, const std::vector<Index>& counts) {
      Index total = 0;
      for (Index count : counts) total += count;
      const bool has_channels = t.rank() == 4;
      Tensor to(t.dtype(),
                has_channels ? Dims{total, t.size(1), t.size(3)} : Dims{t.size(1), total});
      Index row = 0;
      for (Index b = 0; b < B; ++b) {
        const Index count = counts[static_cast<std::size_t>(b)];
        if (count == 0) continue;
        const Tensor one = contiguous(slice(slice(t, 0, b, b + 1), 2, 0, count));
        if (has_channels) {
          copy(transpose(reshape(one.view(), {t.size(1), count, t.size(3)}), 0, 1),
               slice(to, 0, row, row + count));
        } else {
          copy(reshape(one.view(), {t.size(1), count}), slice(to, 1, row, row + count));
        }
        row += count;
      }
      return to;
    };
    const auto options = [&] {
      return Options{
          .alibi = x.slopes, .masks = {Window{150, 40}}, .sinks = x.sinks, .dropout = {0.2, 4}};
    };
    Options padded = options();
    padded.diagonal = Offsets{offsets};
    padded.masks.emplace_back(KeyLengths{ConstView(lengths.data(), {B, 200})});
    PathRunner run(walk, x.score.score());
    const PathResults want = run(x.inputs(), padded, {.out = x.dout});
    const Tensor q = packed(x.q, queries);
    const Tensor k = packed(x.k, keys);
    const Tensor v = packed(x.v, keys);
    const Tensor dout = packed(x.dout, queries);
    const PathResults got = run({q, k, v, cu_q, cu_k}, options(), {.out = dout});
    for (const auto& [name, result] : got) {
      if (name == "dsinks") continue;  // rows past the end have sinks too
      const bool of_keys = name == "dk" || name == "dv";
      const bool of_rows =
          of_keys || name == "dq" || name == "out" || name == "lse" || name == "row_max";
      const Tensor& all = want.at(name);
      EXPECT_TRUE(
          same_bits(of_rows ? packed(all, of_keys ? keys : queries) : contiguous(all), result))
          << name;
    }
  });
}

TEST(BackwardPathOrder, OtherRequestedGradientsDoNotMatter) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const SeededCall x(1, 4, 2, 70, 140, 8, 12, walk);
    PathRunner run(walk, x.score.score(), Executor::threads(2));
    const PathResults all = run(x.inputs(), x.options(), x.sources());
    const int most = 1 << BackwardCall::kNames.size();
    for (int asked = 1; asked < most; asked += 61 * 100 / at_scale(100, 8) | 1) {
      run.asked = asked;
      expect_contains(all, run(x.inputs(), x.options(), x.sources()),
                      "asked " + std::to_string(asked));
    }
  });
}

// Accumulation adds the finished gradient: one addition to the previous value. (For a gradient that
// is rounded to BF16 the sum before rounding is not known; conformance tests cover it.)
TEST(BackwardPathOrder, AccumulationIsOneAddition) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const DType d = walk.dtype;
    if (d != accumulator_of(d)) return;
    const SeededCall x(1, 4, 2, 140, 140, 8, 12, walk);
    PathRunner run(walk, x.score.score());
    const PathResults once = run(x.inputs(), x.options(), x.sources());
    run.write = Write::kAccumulate;  // gradients are added to 1 in every element
    for (const auto& [name, added] : run(x.inputs(), x.options(), x.sources())) {
      if (!name.starts_with("d")) continue;
      std::vector<double> want = values_of(once.at(name));
      for (double& value : want) {
        value = d == DType::kFloat32 ? static_cast<double>(static_cast<float>(value) + 1.0F)
                                     : value + 1;
      }
      EXPECT_TRUE(compare(name, added, want, {}, ""));
    }
  });
}

// ---- non-finite numbers ---------------------------------------------------------------------

// Options that mask pairs, and a function that tells whether they let query i attend to key j.
struct Masking {
  const char* name;
  Options options;
  bool (*live)(Index i, Index j);
};

constexpr Index kQueries = 150;
constexpr Index kKeys = 330;

bool scattered(Index i, Index j) { return i % 7 != 3 && j % 5 != 2 && j < 300 && (i + j) % 3 != 0; }
bool columns(Index, Index j) { return j % 5 != 2 && j < 200; }
bool lengths(Index i, Index j) { return j < (i % 3 == 0 ? 0 : 129 + i); }
bool causal(Index i, Index j) { return j <= i - 20; }
bool window(Index i, Index j) { return j >= i + 200 - 30 && j <= i + 200 + 2; }

// Sets the elements of x for which dead(row, column) holds to 0, or with `non_finite` to NaN, inf
// and -inf. Columns are the last axis, and rows the one before it.
template <class Dead>
void poison(Tensor& x, bool non_finite, const Dead& dead) {
  const double kValues[] = {std::nan(""), std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()};
  const View view = x.view();
  const Index width = view.size(-1);
  const Index rows = view.rank() < 2 ? 1 : view.size(-2);
  for (Index n = 0; n < view.element_count(); ++n) {
    if (!dead(n / width % rows, n % width)) continue;
    core::store(view.dtype(), view.data(), n, non_finite ? kValues[n % 3] : 0);
  }
}

// Whatever they are, these values have no effect: k and v of keys that no query attends to; q, dout
// and dlse of queries without an unmasked key; dweights and bias of masked pairs.
TEST(BackwardPathOrder, MaskedValuesHaveNoEffect) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const DType d = walk.dtype;
    if (d == DType::kFloat64 && walk.kind != ScoreKind::kDot) return;  // to save time
    Tensor keep(DType::kBool, {kQueries, kKeys});
    Tensor fill(d, {kQueries, kKeys});
    Tensor padding(DType::kBool, {2, kKeys});
    std::vector<Index> ends;
    for (Index i = 0; i < kQueries; ++i) {
      for (Index j = 0; j < kKeys; ++j) {
        keep.view().at<bool>({i, j}) = scattered(i, j);
        core::store(d, fill.view().data(), i * kKeys + j, scattered(i, j) ? 0.1 : -INFINITY);
      }
    }
    for (Index j = 0; j < kKeys; ++j) {
      padding.view().at<bool>({0, j}) = padding.view().at<bool>({1, j}) = !columns(0, j);
    }
    for (Index b = 0; b < 2; ++b) {
      for (Index i = 0; i < kQueries; ++i) ends.push_back(i % 3 == 0 ? 0 : 129 + i);
    }
    const Masking maskings[] = {
        {"keep", {.masks = {Keep{keep}}}, &scattered},
        {"padding", {.masks = {Padding{padding}}}, &columns},
        {"lengths", {.masks = {KeyLengths{ConstView(ends.data(), {2, kQueries})}}}, &lengths},
        {"causal", {.diagonal = Offset{-20}, .masks = {Causal{}}}, &causal},
        {"window", {.diagonal = Offset{200}, .masks = {Window{30, 2}}}, &window},
        {"mask_mod",
         {.masks = {mask_mod([](At at) { return scattered(at.i, at.j); })}},
         &scattered},
        {"bias", {.bias = fill}, &scattered}};
    for (const Masking& m : maskings) {
      const auto dead_query = [&](Index i, Index) {
        for (Index j = 0; j < kKeys; ++j) {
          if (m.live(i, j)) return false;
        }
        return true;
      };
      const auto dead_key = [&](Index j, Index) {
        for (Index i = 0; i < kQueries; ++i) {
          if (m.live(i, j)) return false;
        }
        return true;
      };
      const auto dead_pair = [&](Index i, Index j) { return !m.live(i, j); };
      const auto gradients = [&](bool non_finite) {
        SeededCall x(2, 2, 1, kQueries, kKeys, 9, 6, walk);
        Tensor bias = normal({kQueries, kKeys}, 10, d);
        Tensor dweights = normal({2, 2, kQueries, kKeys}, 11, accumulator_of(d));
        poison(x.q, non_finite, dead_query);
        poison(x.k, non_finite, dead_key);
        poison(x.v, non_finite, dead_key);
        poison(x.dout, non_finite, dead_query);
        poison(x.dlse, non_finite, [&](Index, Index i) { return dead_query(i, 0); });
        poison(dweights, non_finite, dead_pair);
        poison(bias, non_finite, dead_pair);
        Options options = m.options;
        if (!options.bias.given()) options.bias = bias;
        options.dropout = {0.2, 6};
        PathRunner run(walk, x.score.score());
        return run(x.inputs(), options,
                   {.out = x.dout, .lse = x.dlse, .weights = ConstView(dweights)});
      };
      const PathResults got = gradients(true);
      expect_same(gradients(false), got, m.name);
      // An empty row's dq is exactly 0.
      const std::vector<double> dq = values_of(got.at("dq"));
      for (std::size_t n = 0; n < dq.size(); ++n) {
        const Index i = static_cast<Index>(n) / 9 % kQueries;
        if (dead_query(i, 0)) {
          ASSERT_EQ(dq[n], 0) << m.name << ", query " << i;
        }
      }
    }
  });
}

// A NaN in a row of q, k, v or dout makes dq NaN for the queries that read the row, and dk NaN for
// the keys that these queries attend to. In dv of these keys, NaN in q or k reaches all channels,
// NaN in dout its own channel, and NaN in v none. All other elements of dq, dk and dv are unchanged
// bit for bit.
TEST(BackwardPathOrder, ALiveNanReachesWhatDependsOnIt) {
  for_each_path(Passes::kBoth, [](const Walk& walk) {
    const DType d = walk.dtype;
    constexpr Index kRow = 131;
    const Options options{.diagonal = TopLeft{}, .masks = {Causal{}, Window{60, 0}}};
    const SeededCall x(1, 1, 1, 140, 140, 9, 6, walk);
    PathRunner run(walk, x.score.score());
    const PathResults plain = run(x.inputs(), options, {.out = x.dout});
    for (const char* where : {"q", "k", "v", "dout"}) {
      SeededCall y(1, 1, 1, 140, 140, 9, 6, walk);
      Tensor& to = where[0] == 'q' ? y.q : where[0] == 'k' ? y.k : where[0] == 'v' ? y.v : y.dout;
      poison(to, true, [](Index row, Index c) { return row == kRow && c == 2; });
      // poison() has set this element to NaN, inf or -inf; it must be NaN.
      core::store(d, to.view().data(), kRow * to.size(3) + 2, std::nan(""));
      const PathResults got = run(y.inputs(), options, {.out = y.dout});
      const bool key = where[0] == 'k' || where[0] == 'v';
      const auto sees = [&](Index i) {  // whether query i attends to the NaN
        return key ? i >= kRow && i - kRow <= 60 : i == kRow;
      };
      const auto rows = [](const Tensor& t, Index i) { return slice(t.view(), 2, i, i + 1); };
      const auto all_nan = [&](const Tensor& t, Index i) {
        for (double value : values_of(rows(t, i))) {
          if (!std::isnan(value)) return false;
        }
        return true;
      };
      for (Index i = 0; i < 140; ++i) {
        if (sees(i)) {
          EXPECT_TRUE(all_nan(got.at("dq"), i)) << where << ", query " << i;
        } else {
          EXPECT_TRUE(same_bits(rows(plain.at("dq"), i), rows(got.at("dq"), i)))
              << where << ", query " << i;
        }
      }
      for (Index j = 0; j < 140; ++j) {
        bool seen = false;  // whether a query whose row is NaN attends to key j
        for (Index i = j; i < std::min<Index>(140, j + 61); ++i) seen = seen || sees(i);
        EXPECT_EQ(all_nan(got.at("dk"), j), seen) << where << ", key " << j;
        if (!seen) {
          EXPECT_TRUE(same_bits(rows(plain.at("dk"), j), rows(got.at("dk"), j)))
              << where << ", key " << j;
        }
        // dv is a sum of weights times dout.
        for (Index c = 0; c < 6; ++c) {
          const auto channel = [&](const PathResults& from) {
            return slice(rows(from.at("dv"), j), 3, c, c + 1);
          };
          const bool in_weights = &to == &y.q || &to == &y.k;
          const bool reached = seen && (in_weights || (&to == &y.dout && c == 2));
          if (reached) {
            EXPECT_TRUE(std::isnan(values_of(channel(got))[0]))
                << where << ", key " << j << ", channel " << c;
          } else {
            EXPECT_TRUE(same_bits(channel(plain), channel(got)))
                << where << ", key " << j << ", channel " << c;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
