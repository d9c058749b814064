// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/bfloat16_products.h"
#include "core/elementary.h"
#include "kernels/gradient_kernels.h"
#include "reference/row_sums.h"
#include "tests/attention/backward_call.h"
#include "tests/support/compare.h"

// Gradients of a BF16 head, on targets with products of BF16 and on the references that have such
// products, are bit-identical with the formulas of core/bfloat16_products.h applied to the
// exponentials of each path. (Conformance tests compare a path with its reference within wide
// bounds, because an exponential's last bit may decide which way a weight is rounded.)
namespace qkv::test {
namespace {

using core::kGradientBlock;
using core::Products;
using Floats = std::vector<float>;

std::size_t at(Index n) { return static_cast<std::size_t>(n); }

Floats floats_of(const Tensor& x) {
  const std::vector<double> values = values_of(x);
  return Floats(values.begin(), values.end());
}

// A head of Tq queries and Tk keys.
struct Head {
  Tensor q, k, v, dout, dlse;
  bool causal = false;

  Index Tq() const { return q.size(0); }
  Index Tk() const { return k.size(0); }
  Index D() const { return q.size(1); }
  Index E() const { return v.size(1); }
  bool live(Index i, Index j) const { return !causal || j <= i + Tk() - Tq(); }
};

// For every query-key pair its weight w, and ds, the gradient of its scaled score. The exponentials
// are those of the AVX-512 kernels (`by_kernels`) or of the reference.
class HeadOfBFloat16 {
 public:
  HeadOfBFloat16(const Head& head, const SavedTensors& saved, Products products, bool by_kernels)
      : head_(head),
        products_(products),
        w(at(head.Tq() * head.Tk())),
        ds(w),
        q_(floats_of(head.q)),
        k_(floats_of(head.k)),
        v_(floats_of(head.v)),
        dout_(floats_of(head.dout)),
        dlse_(floats_of(head.dlse)),
        out_(floats_of(saved.out)),
        lse_(floats_of(saved.lse)) {
    for (Index i = 0; i < head.Tq(); ++i) row(i, by_kernels);
  }

 private:
  static constexpr float kMasked = -std::numeric_limits<float>::infinity();
  float dot(const Floats& a, Index r, const Floats& b, Index n, Index width) const {
    const float* const left = a.data() + r * width;
    const float* const right = b.data() + n * width;
    return products_ == Products::kAmx ? core::amx_dot(left, right, width)
                                       : core::dot2(left, right, width);
  }

  void row(Index i, bool by_kernels) {
    const float lse = lse_[at(i)];
    if (lse == kMasked) return;                  // an empty row
    ASSERT_LT(std::fabs(lse), core::kLargeLse);  // so that the weights' factor is 1
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_.D())));
    const float delta = dot(dout_, i, out_, i, head_.E()) - dlse_[at(i)];
    const Index padded = (head_.Tk() + kernels::kPanel - 1) / kernels::kPanel * kernels::kPanel;
    Floats s(at(padded), kMasked), dw(at(padded));
    for (Index j = 0; j < head_.Tk(); ++j) {
      if (!head_.live(i, j)) continue;
      s[at(j)] = dot(q_, i, k_, j, head_.D()) * scale;
      dw[at(j)] = dot(dout_, i, v_, j, head_.E());
    }
    if (by_kernels) {
      const float one = 1;
      kernels::gradient_kernels<float>(kernels::Target::kAvx512)
          .score_gradients({s.data(), padded}, {dw.data(), padded}, 1, padded, {&lse, &one, &delta},
                           one);
    } else {
      for (std::size_t j = 0; j < s.size(); ++j) {
        s[j] = s[j] == kMasked ? 0 : core::portable_exp(s[j] - lse);
        dw[j] = s[j] * (dw[j] - delta);
      }
    }
    std::copy_n(s.begin(), head_.Tk(), w.begin() + i * head_.Tk());
    std::copy_n(dw.begin(), head_.Tk(), ds.begin() + i * head_.Tk());
  }

  const Head& head_;
  const Products products_;

 public:
  Floats w, ds;  // [Tq][Tk]

 private:
  Floats q_, k_, v_, dout_, dlse_, out_, lse_;
};

// Returns `rows` rows: row r is the sum over n of factor(n, r), rounded to BF16, times row n of x.
// Each block of kGradientBlock terms is summed from zero; the blocks are then added.
template <class Factor>
Floats sums(Products products, Index rows, const Tensor& x, const Factor& factor) {
  const Floats values = floats_of(x);
  const Index terms = x.size(0);
  const Index width = x.size(1);
  Floats to(at(rows * width));
  for (Index r = 0; r < rows; ++r) {
    for (Index begin = 0; begin < terms; begin += kGradientBlock) {
      Floats block(at(width)), chains(at(2 * width));
      reference::RowSums<float> sum(products, chains.data(), width);
      sum.begin(begin, block.data());
      core::for_each_term(products, begin, std::min(terms, begin + kGradientBlock),
                          [&](Index n) { sum.add(n, factor(n, r), values.data() + n * width); });
      sum.end();
      for (Index c = 0; c < width; ++c) to[at(r * width + c)] += block[at(c)];
    }
  }
  return to;
}

void expect_stored(const Gradients& got, const char* name, const Floats& want) {
  const Tensor stored = contiguous(got.arrays().at(name).view());
  const Floats values = floats_of(stored);
  for (std::size_t n = 0; n < want.size(); ++n) {
    const float rounded = stored.dtype() == DType::kFloat32
                              ? want[n]
                              : core::to_float(core::from_float<BFloat16>(want[n]));
    ASSERT_EQ(values[n], rounded) << "d" << name << " at " << n;
  }
}

void expect_formulas(const Head& head) {
  // The gradient of a float32 bias is ds, which is not rounded to bfloat16.
  const Tensor bias(DType::kFloat32, {head.Tq(), head.Tk()});
  BackwardCall call{.inputs = {head.q, head.k, head.v},
                    .options = {.bias = bias},
                    .sources = {.out = head.dout, .lse = head.dlse},
                    .threads = 2};
  if (head.causal) call.options.masks = {Causal{}};
  for (const char* name : {"q", "k", "v", "bias"}) call.ask(name, Layout::kContiguous);
  std::vector<std::string> paths = bfloat16_paths();
  for (const std::string_view path : {kDot2ReferencePath, kAmxReferencePath}) {
    paths.emplace_back(path);
  }
  for (const std::string& path : paths) {
    SCOPED_TRACE(path + ", " + std::to_string(head.Tq()) + " queries, " +
                 std::to_string(head.Tk()) + " keys" + (head.causal ? ", causal" : ""));
    const SavedTensors saved(call, path);
    const Gradients got(call);
    run_backward(call, path, saved.views(), got);
    const bool of_dot2 = path.ends_with("/avx512bf16") || path == kDot2ReferencePath;
    const Products products = of_dot2 ? Products::kDot2 : Products::kAmx;
    const HeadOfBFloat16 pairs(head, saved, products, has_bfloat16_products(path));
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head.D())));
    const auto pair = [&](Index i, Index j) { return at(i * head.Tk() + j); };
    expect_stored(got, "bias", pairs.ds);
    expect_stored(got, "q", sums(products, head.Tq(), head.k, [&](Index j, Index i) {
                    return pairs.ds[pair(i, j)] * scale;
                  }));
    expect_stored(got, "k", sums(products, head.Tk(), head.q, [&](Index i, Index j) {
                    return pairs.ds[pair(i, j)] * scale;
                  }));
    expect_stored(got, "v", sums(products, head.Tk(), head.dout, [&](Index i, Index j) {
                    return pairs.w[pair(i, j)];
                  }));
  }
}

Tensor narrow(Index rows, Index width, std::uint64_t seed) {
  return normal({rows, width}, seed, DType::kBFloat16);
}

Tensor zeros(Index rows, Index width) { return Tensor(DType::kBFloat16, {rows, width}); }

Tensor ones(Index count) {
  Tensor x(DType::kFloat32, Dims(count));
  for (float& value : x.values<float>()) value = 1;
  return x;
}

// Returns random rows, of which row 4m is multiplied by 2^20 and row 4m + 2 is minus row 4m. In a
// sum of all rows, what remains of the odd-numbered rows shows the order of addition.
Tensor cancelling(Index rows, Index width, std::uint64_t seed) {
  Tensor x = narrow(rows, width, seed);
  for (Index r = 0; r < rows; r += 2) {
    for (Index c = 0; c < width; ++c) {
      BFloat16& value = x.values<BFloat16>()[at(r * width + c)];
      value = r % 4 == 0 ? BFloat16(core::to_float(value) * 0x1p20F)
                         : BFloat16(-core::to_float(x.values<BFloat16>()[at((r - 2) * width + c)]));
    }
  }
  return x;
}

constexpr Index kSizes[][4] = {{1, 1, 1, 1},     {5, 64, 16, 3},     {7, 130, 33, 65},
                               {129, 65, 64, 8}, {140, 300, 17, 40}, {258, 129, 66, 64}};

TEST(BFloat16Gradients, AreThoseOfTheFormulas) {
  for (const auto& [Tq, Tk, D, E] : kSizes) {
    for (const bool causal : {false, true}) {
      expect_formulas({narrow(Tq, D, 1), narrow(Tk, D, 2), narrow(Tk, E, 3), narrow(Tq, E, 4),
                       normal(Dims(Tq), 5), causal});
    }
  }
}

// All scores and v are 0, and dlse is 1, so that all weights are equal, and all ds, too: rows that
// cancel still cancel in the weighted sums.
TEST(BFloat16Gradients, AddInTheOrderOfTheFormulas) {
  for (const auto& [Tq, Tk, D, E] : kSizes) {
    expect_formulas(
        {cancelling(Tq, D, 1), zeros(Tk, D), zeros(Tk, E), cancelling(Tq, E, 2), ones(Tq)});
    expect_formulas({zeros(Tq, D), cancelling(Tk, D, 3), zeros(Tk, E), narrow(Tq, E, 4), ones(Tq)});
  }
}

}  // namespace
}  // namespace qkv::test
