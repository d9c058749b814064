// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/path_runner.h"

// Kernels of the additive score store a projected row's exponentials in one of three forms,
// depending on the row's largest value (kernels/additive_kernels.h), and read them by different
// loops. Whatever forms meet in a tile, no result depends on neighbouring rows or on masked keys,
// bit for bit.
namespace qkv::test {
namespace {

constexpr Index kEntries = 2;  // batch entries, and heads of each
constexpr Index kQueries = 40;
constexpr Index kKeys = 140;  // three panels, two blocks of the gradients
constexpr Index kUnits = 33;

// A bilinear or additive score whose projections are the identity.
struct Identity {
  explicit Identity(const Walk& walk)
      : kind(walk.kind), w(walk.dtype, {kUnits, kUnits}), v(normal(Dims(kUnits), 7, walk.dtype)) {
    for (Index u = 0; u < kUnits; ++u)
      core::store(walk.dtype, w.view().data(), u * (kUnits + 1), 1);
  }
  Score score() const {
    if (kind == ScoreKind::kBilinear) return Bilinear{w};
    return Additive{w, w, v};
  }

  ScoreKind kind;
  Tensor w, v;
};

struct Arrays {
  explicit Arrays(DType d)
      : q(normal({kEntries, kEntries, kQueries, kUnits}, 1, d)),
        k(normal({kEntries, kEntries, kKeys, kUnits}, 2, d)),
        v(normal({kEntries, kEntries, kKeys, 7}, 3, d)),
        dout(normal({kEntries, kEntries, kQueries, 7}, 4, d)),
        dlse(normal({kEntries, kEntries, kQueries}, 5, d)),
        dweights(normal({kEntries, kEntries, kQueries, kKeys}, 6, d)) {}

  // Writes x to elements 5 and 32 of the row (b, h, n).
  static void put(Tensor& to, Index b, Index h, Index n, double x) {
    const Index row = ((b * kEntries + h) * to.size(2) + n) * kUnits;
    for (const Index u : {5, 32}) core::store(to.dtype(), to.view().data(), row + u, x);
  }

  Tensor q, k, v, dout, dlse, dweights;
};

// Runs both passes of a call [2,2,T,.].
PathResults run(const Walk& walk, const Arrays& x, const Options& options) {
  const Identity identity(walk);
  PathRunner runner(walk, identity.score());
  runner.besides = PathRunner::Besides::kWeights;
  return runner({x.q, x.k, x.v}, options,
                {.out = x.dout, .lse = x.dlse, .weights = ConstView(x.dweights)});
}

// A number beyond kSmallBound (10.5), one just beyond kPlainBound (35 in float32, 330 in float64)
// and one farther beyond, two with exponentials beyond any type, and non-finite numbers.
std::vector<double> odd_numbers(DType d) {
  const bool wide = d == DType::kFloat64;
  const double inf = std::numeric_limits<double>::infinity();
  return {11, wide ? 335. : 36., wide ? -400. : -44.3, 1e6, -1e30, inf, -inf, std::nan("")};
}

// Calls test(walk) for the fast paths of both scores.
template <class F>
void for_each_projected_path(const F& test) {
  for (const ScoreKind kind : {ScoreKind::kBilinear, ScoreKind::kAdditive}) {
    const std::vector<std::string> paths = fast_backward_paths(kind);
    for (const std::string& path : paths) {
      for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
        if (is_brief() && (path != paths.front() || dtype == DType::kFloat64)) continue;
        SCOPED_TRACE(path + ", " + std::string(name_of(dtype)));
        test(Walk{path, kind, dtype});
      }
    }
  }
}

TEST(ProjectedPathOrder, AMaskedKeyMayBeAnything) {
  for_each_projected_path([](const Walk& walk) {
    const DType d = walk.dtype;
    constexpr Index kKey = kKeys - 1;  // masked for every query
    Tensor keep(DType::kBool, Dims(kKeys));
    Tensor padding(DType::kBool, {kEntries, kKeys});
    Tensor bias = normal(Dims(kKeys), 8, d);
    for (Index j = 0; j < kKeys; ++j) keep.view().at<bool>({j}) = j != kKey;
    for (Index b = 0; b < kEntries; ++b) padding.view().at<bool>({b, kKey}) = true;
    core::store(d, bias.view().data(), kKey, -std::numeric_limits<double>::infinity());
    const std::vector<Index> lengths(kEntries, kKey);
    const std::pair<const char*, Options> maskings[] = {
        {"keep", {.masks = {Keep{keep}}}},
        {"padding", {.masks = {Padding{padding}}}},
        {"lengths", {.masks = {KeyLengths{lengths}}}},
        {"causal", {.diagonal = Offset{kKeys - kQueries - 1}, .masks = {Causal{}}}},
        {"window", {.diagonal = TopLeft{}, .masks = {Window{-1, kKeys - kQueries - 1}}}},
        {"mask_mod", {.masks = {mask_mod([](At at) { return at.j != kKey; })}}},
        {"bias", {.bias = bias}}};
    for (const auto& [name, options] : maskings) {
      const auto with = [&, &of = options](double odd) {
        Arrays x(d);
        for (Index b = 0; b < kEntries; ++b) {
          for (Index h = 0; h < kEntries; ++h) Arrays::put(x.k, b, h, kKey, odd);
        }
        return run(walk, x, of);
      };
      const PathResults want = with(0);
      // Only "keep" also runs the positive numbers below 1e6.
      const bool every = std::string_view(name) == "keep";
      for (const double odd : odd_numbers(d)) {
        if (!every && odd > 0 && odd < 1e6) continue;
        expect_same(want, with(odd), name + std::string(", key of ") + std::to_string(odd));
      }
    }
  });
}

// Expects that the results a and b [2,2,T,..] are bit-identical except in entry (1, 1) or, if `but`
// is not negative, except in row `but` of that entry.
void expect_others_same(const Tensor& a, const Tensor& b, Index but, const std::string& what) {
  for (Index n = 0; n < kEntries; ++n) {
    for (Index h = 0; h < kEntries; ++h) {
      const auto entry = [&](const Tensor& x) {
        return slice(slice(x.view(), 0, n, n + 1), 1, h, h + 1);
      };
      const auto rows = [&](Index from, Index to) {
        if (from == to) return;
        EXPECT_TRUE(same_bits(slice(entry(a), 2, from, to), slice(entry(b), 2, from, to)))
            << what << ", entry " << n << "," << h << ", rows from " << from;
      };
      if (n + h < 2) {
        rows(0, a.size(2));
      } else if (but >= 0) {
        rows(0, but);
        rows(but + 1, a.size(2));
      }
    }
  }
}

TEST(ProjectedPathOrder, NeighboursMayBeAnything) {
  for_each_projected_path([](const Walk& walk) {
    const PathResults plain = run(walk, Arrays(walk.dtype), {});
    for (const double odd : odd_numbers(walk.dtype)) {
      for (const bool query : {true, false}) {
        Arrays x(walk.dtype);
        Arrays::put(query ? x.q : x.k, 1, 1, 20, odd);
        const PathResults got = run(walk, x, {});
        const std::string what = (query ? "query of " : "key of ") + std::to_string(odd);
        const Index row = query ? 20 : -1;  // all queries attend to the key
        for (const char* name : {"out", "lse", "row_max", "weights", "dq", "dk", "dv"}) {
          const bool keys = name == std::string("dk") || name == std::string("dv");
          expect_others_same(plain.at(name), got.at(name), keys ? -1 : row, what + ", " + name);
        }
      }
    }
  });
}

// One causal call has rows of every form of exponentials. Each of its queries is also run alone,
// with only the keys that it attends to: its row must be the same, bit for bit.
TEST(ProjectedPathOrder, RowsOfEverySizeAreWhatTheyAreAlone) {
  for_each_projected_path([](const Walk& walk) {
    const DType d = walk.dtype;
    const double bound = d == DType::kFloat64 ? 330 : 35;  // kPlainBound
    const double sizes[] = {10.4,  10.6, bound - 0.1, bound + 0.1, 42.9,
                            -43.1, 100,  -bound - 20, 400};
    Arrays x(d);
    for (std::size_t n = 0; n < std::size(sizes); ++n) {
      const auto at = static_cast<Index>(n);
      for (const Index b : {0, 1}) {
        for (const Index h : {0, 1}) {
          Arrays::put(x.q, b, h, 4 * at + b, sizes[n]);
          Arrays::put(x.k, b, h, 13 * at + h, -sizes[n]);  // units 5 and 32 of the pair cancel
        }
      }
    }
    const Options causal{.masks = {Causal{}}};
    const PathResults all = run(walk, x, causal);
    const Identity identity(walk);
    PathRunner runner(walk, identity.score());
    runner.asked = 1;  // dq
    const auto rows = [](const Tensor& t, Index from, Index to) {
      return slice(t.view(), 2, from, to);
    };
    for (Index i = 0; i < kQueries; ++i) {
      const Index seen = kKeys - kQueries + i + 1;
      const Tensor dweights = contiguous(slice(rows(x.dweights, i, i + 1), 3, 0, seen));
      const PathResults alone =
          runner({rows(x.q, i, i + 1), rows(x.k, 0, seen), rows(x.v, 0, seen)}, {},
                 {.out = rows(x.dout, i, i + 1),
                  .lse = rows(x.dlse, i, i + 1),
                  .weights = ConstView(dweights)});
      for (const auto& [name, result] : alone) {
        EXPECT_TRUE(same_bits(rows(all.at(name), i, i + 1), result)) << name << ", query " << i;
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
