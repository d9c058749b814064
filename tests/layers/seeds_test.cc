// SPDX-License-Identifier: Apache-2.0
// Tests the numbers that the seed documents compute with layers, and where this library differs.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/layers.h>

#include "tests/layers/support.h"
#include "tests/support/compare.h"

namespace qkv::test {
namespace {

// ---- seed 002: the toy example --------------------------------------------------------------

class Seed002 : public testing::Test {
 protected:
  Seed002() {
    for (float& x : q_.values<float>()) x = 1;
    for (float& x : k_.values<float>()) x = 1;
    for (std::size_t n = 0; n < 80; ++n) v_.values<float>()[n] = static_cast<float>(n % 40);
  }

  template <class Layer>
  void expect_toy(const Layer& layer) {
    RunState run;  // evaluation
    typename Layer::Saved saved;
    Tensor out(DType::kFloat32, {2, 1, 4});
    layer.forward({q_, k_, v_, lengths_}, run, saved, {.out = out});
    const std::vector<double> want{2, 3, 4, 5, 10, 11, 12, 13};
    // The bound is for sums of up to six products with values to 23, rounded a few times in
    // float32.
    EXPECT_TRUE(compare("out", out, want, {4e-7, 0}, "toy of seed 002"));
  }

  Tensor q_{DType::kFloat32, {2, 1, 2}};
  Tensor k_{DType::kFloat32, {2, 10, 2}};
  Tensor v_{DType::kFloat32, {2, 10, 4}};
  std::vector<std::int64_t> lengths_{2, 6};
};

TEST_F(Seed002, DotProductGivesThePrintedNumbers) { expect_toy(DotProductAttention(0.5)); }

TEST_F(Seed002, AdditiveGivesThePrintedNumbersForAnyParameters) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    MLPAttention layer(2, 2, 8, 0.1);
    initialise(layer, seed);
    expect_toy(layer);
  }
}

TEST_F(Seed002, BilinearGivesThePrintedNumbers) {
  BilinearAttention layer(2, 2, 0.5);
  initialise(layer, 3);
  expect_toy(layer);
}

// The PyTorch listing of seed 002 swaps W_k and W_q; the library follows its equation 10.1.7.
TEST(Seeds, AdditiveProjectsQueriesWithWq) {
  AdditiveAttention layer(3, 2, 4, 0, DType::kFloat64);
  initialise(layer, 5);
  const Tensor q = random_tensor(DType::kFloat64, {1, 1, 3}, 1);
  const Tensor k = random_tensor(DType::kFloat64, {1, 2, 2}, 2);
  const Tensor v = random_tensor(DType::kFloat64, {1, 2, 1}, 3);
  std::array<double, 2> scores{};
  const auto& p = layer.parameters();
  for (std::size_t j = 0; j < 2; ++j) {
    for (std::size_t u = 0; u < 4; ++u) {
      double sum = 0;
      for (std::size_t c = 0; c < 3; ++c) {
        sum += p.w_q.values<double>()[u * 3 + c] * q.values<double>()[c];
      }
      for (std::size_t c = 0; c < 2; ++c) {
        sum += p.w_k.values<double>()[u * 2 + c] * k.values<double>()[j * 2 + c];
      }
      scores[j] += p.v.values<double>()[u] * std::tanh(sum);
    }
  }
  RunState run;
  AdditiveAttention::Saved saved;
  Tensor out(DType::kFloat64, {1, 1, 1});
  Tensor raw(DType::kFloat64, {1, 1, 2});
  layer.forward({q, k, v}, run, saved, {.out = out, .raw_scores = View(raw)});
  EXPECT_TRUE(compare("scores", raw, scores, {1e-13, 1e-14}, "seed 5"));
}

// ---- multi-head attention, written out ------------------------------------------------------

// Computes y[r,o] = sum_i x[r,i] W[o,i] + b[o] over rows of x.
std::vector<double> affine(const std::vector<double>& x, const LinearParameters& p) {
  const std::vector<double> w = values_of(p.weight);
  const std::vector<double> b = values_of(p.bias);
  const auto O = static_cast<std::size_t>(p.weight.size(0));
  const auto I = static_cast<std::size_t>(p.weight.size(1));
  std::vector<double> y;
  for (std::size_t r = 0; r < x.size() / I; ++r) {
    for (std::size_t o = 0; o < O; ++o) {
      y.push_back(std::inner_product(w.begin() + static_cast<std::ptrdiff_t>(o * I),
                                     w.begin() + static_cast<std::ptrdiff_t>((o + 1) * I),
                                     x.begin() + static_cast<std::ptrdiff_t>(r * I),
                                     b.empty() ? 0.0 : b[o]));
    }
  }
  return y;
}

struct Sizes {
  std::size_t B, Tq, Tk, H, D;
};

// Computes attention of projected q [B,Tq,H*D], k and v [B,Tk,H*D] in plain loops; the result is
// [B,H,Tq,D]. seen(b, i, j) says whether query i of entry b may attend to key j.
template <class Seen>
std::vector<double> heads_of(const std::vector<double>& q, const std::vector<double>& k,
                             const std::vector<double>& v, const Sizes& s, const Seen& seen) {
  const std::size_t row = s.H * s.D;
  std::vector<double> out(s.B * s.H * s.Tq * s.D);
  for (std::size_t b = 0; b < s.B; ++b) {
    for (std::size_t h = 0; h < s.H; ++h) {
      for (std::size_t i = 0; i < s.Tq; ++i) {
        std::vector<double> weights(s.Tk);
        double total = 0;
        for (std::size_t j = 0; j < s.Tk; ++j) {
          double score = 0;
          for (std::size_t c = 0; c < s.D; ++c) {
            score += q[(b * s.Tq + i) * row + h * s.D + c] * k[(b * s.Tk + j) * row + h * s.D + c];
          }
          weights[j] = seen(b, i, j) ? std::exp(score / std::sqrt(static_cast<double>(s.D))) : 0;
          total += weights[j];
        }
        for (std::size_t j = 0; j < s.Tk; ++j) {
          for (std::size_t c = 0; c < s.D; ++c) {
            out[((b * s.H + h) * s.Tq + i) * s.D + c] +=
                weights[j] / total * v[(b * s.Tk + j) * row + h * s.D + c];
          }
        }
      }
    }
  }
  return out;
}

// Merges heads [B,H,T,D] -> [B,T,H*D].
std::vector<double> merge(const std::vector<double>& heads, const Sizes& s) {
  std::vector<double> merged;
  for (std::size_t b = 0; b < s.B; ++b) {
    for (std::size_t i = 0; i < s.Tq; ++i) {
      for (std::size_t h = 0; h < s.H; ++h) {
        for (std::size_t c = 0; c < s.D; ++c) {
          merged.push_back(heads[((b * s.H + h) * s.Tq + i) * s.D + c]);
        }
      }
    }
  }
  return merged;
}

TEST(MultiHead, BothFormsAreWhatTheirFormulasSay) {
  for (const HeadForm form : {HeadForm::kSplit, HeadForm::kWide}) {
    const bool split = form == HeadForm::kSplit;
    MultiHeadAttention layer(
        {.width = 6, .heads = 3, .form = form, .dropout = 0.5, .dtype = DType::kFloat64});
    initialise(layer, 9);
    const Tensor q = random_tensor(DType::kFloat64, {2, 4, 6}, 1);
    const Tensor k = random_tensor(DType::kFloat64, {2, 5, 6}, 2);
    const Tensor v = random_tensor(DType::kFloat64, {2, 5, 6}, 3);
    const std::vector<std::uint8_t> padding{0, 1, 0, 0, 1, 0, 0, 0, 1, 1};  // 1 = padding
    RunState run;
    MultiHeadAttention::Saved saved;
    Tensor out(DType::kFloat64, {2, 4, 6});
    layer.forward({q, k, v, {}, {Padding{ConstView(padding.data(), {2, 5})}, Causal{}}}, run, saved,
                  {.out = out});

    const auto& p = layer.parameters();
    const Sizes s{2, 4, 5, 3, split ? 2U : 6U};
    const auto seen = [&](std::size_t b, std::size_t i, std::size_t j) {
      return padding[b * 5 + j] == 0 && j <= i + 1;  // bottom-right corner: Tk - Tq = 1
    };
    const std::vector<double> heads = heads_of(affine(values_of(q), p.q), affine(values_of(k), p.k),
                                               affine(values_of(v), p.v), s, seen);
    EXPECT_TRUE(compare("out", out, affine(merge(heads, s), p.o), {1e-12, 1e-13},
                        split ? "split" : "wide"));
  }
}

TEST(MultiHead, PaddingHasTheSenseOfSeed003AndMayHoldAnything) {
  MultiHeadAttention layer({.width = 8, .heads = 2});
  initialise(layer, 10);
  Tensor x = random_tensor(DType::kFloat32, {2, 3, 8}, 1);
  Tensor memory = random_tensor(DType::kFloat32, {2, 4, 8}, 2);
  const Tensor dy = random_tensor(DType::kFloat32, {2, 3, 8}, 3);
  const std::vector<std::uint8_t> padding{0, 0, 1, 1, 0, 0, 0, 1};
  const LayerInputs inputs{x, memory, memory, {}, {Padding{ConstView(padding.data(), {2, 4})}}};

  // Returns out, dx, dmemory and the parameters' gradients, as bytes.
  const auto everything = [&] {
    RunState run;
    MultiHeadAttention::Saved saved;
    Tensor out(DType::kFloat32, {2, 3, 8});
    Tensor dx(DType::kFloat32, {2, 3, 8});
    Tensor dm(DType::kFloat32, {2, 4, 8});
    auto gradients = layer.zero_gradients();
    layer.forward(inputs, run, saved, {.out = out});
    layer.backward(saved, {.out = dy}, {.q = dx, .k = dm, .v = dm}, gradients);
    std::vector<std::vector<std::uint8_t>> all{bytes_of(out), bytes_of(dx), bytes_of(dm),
                                               all_bytes(gradients)};
    for (std::size_t j : {2U, 3U, 7U}) {  // no gradient where there is padding
      for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(dm.values<float>()[j * 8 + c], 0);
    }
    return all;
  };
  const auto want = everything();
  const auto fill_row = [&](std::size_t j, float value) {
    for (std::size_t c = 0; c < 8; ++c) memory.values<float>()[j * 8 + c] = value;
  };
  for (const float value :
       {1e30F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t j : {2U, 3U, 7U}) fill_row(j, value);
    EXPECT_EQ(everything(), want) << "padding holds " << value;
  }
  fill_row(1, 0.5F);
  EXPECT_NE(everything(), want);  // positions other than padding count
}

// ---- seed 001 -------------------------------------------------------------------------------

// Six word vectors, "the cat walks on the street": rows 0 and 4 are equal.
Tensor sentence(DType dtype) {
  Tensor x = random_tensor(dtype, {1, 6, 50}, 20);
  copy(slice(ConstView(x), 1, 0, 1), slice(x.view(), 1, 4, 5));
  return x;
}

TEST(Seed001, WideFormGivesEqualWordsEqualRowsAndTheLiteralMergeDoesNot) {
  const Tensor x = sentence(DType::kFloat64);
  MultiHeadAttention layer(
      {.width = 50, .heads = 8, .form = HeadForm::kWide, .dtype = DType::kFloat64});
  initialise(layer, 21);
  RunState run;
  MultiHeadAttention::Saved saved;
  Tensor out(DType::kFloat64, {1, 6, 50});
  layer.forward({x, x, x}, run, saved, {.out = out});
  const ConstView y = out;
  const std::vector<double> the = values_of(slice(y, 1, 0, 1));
  EXPECT_TRUE(compare("row 4", slice(y, 1, 4, 5), the, {}, "the two rows of \"the\""));
  EXPECT_FALSE(compare("row 1", slice(y, 1, 1, 2), the, {1e-3, 1e-3}, "the and cat"));

  // The library merges heads as seed 001 means it. `literal_out` has them merged as by its code,
  // which differs: out [B*H,T,k].transpose(1, 2) is read as [B,T,H*k], not first as [B,H,T,k].
  const auto& p = layer.parameters();
  const std::vector<double> words = values_of(x);
  const Sizes s{1, 6, 6, 8, 50};
  const auto all_seen = [](std::size_t, std::size_t, std::size_t) { return true; };
  const std::vector<double> heads =
      heads_of(affine(words, p.q), affine(words, p.k), affine(words, p.v), s, all_seen);
  EXPECT_TRUE(compare("out", out, affine(merge(heads, s), p.o), {1e-12, 1e-13}, "meant"));
  std::vector<double> literal;  // [H,k,T] in memory order
  for (std::size_t h = 0; h < 8; ++h) {
    for (std::size_t c = 0; c < 50; ++c) {
      for (std::size_t i = 0; i < 6; ++i) literal.push_back(heads[(h * 6 + i) * 50 + c]);
    }
  }
  std::vector<double> literal_out = affine(literal, p.o);  // [T,k]
  const ConstView literal_rows(literal_out.data(), {6, 50});
  EXPECT_FALSE(compare("row 4", slice(literal_rows, 0, 4, 5),
                       values_of(slice(literal_rows, 0, 0, 1)), {1e-3, 1e-3}, "literal merge"));
  EXPECT_FALSE(compare("out", out, literal_out, {1e-3, 1e-3}, "literal merge"));
}

TEST(Seed001, SelfAttentionIsItsFormula) {
  const Tensor x = sentence(DType::kFloat64);
  SelfAttention layer(50, DType::kFloat64);
  initialise(layer, 22);
  RunState run;
  SelfAttention::Saved saved;
  Tensor out(DType::kFloat64, {1, 6, 50});
  Tensor weights(DType::kFloat64, {1, 6, 6});
  layer.forward({x}, run, saved, {.out = out, .weights = View(weights)});
  const auto& p = layer.parameters();
  const std::vector<double> words = values_of(x);
  const auto all_seen = [](std::size_t, std::size_t, std::size_t) { return true; };
  const std::vector<double> want = heads_of(affine(words, p.q), affine(words, p.k),
                                            affine(words, p.v), {1, 6, 6, 1, 50}, all_seen);
  EXPECT_TRUE(compare("out", out, want, {1e-12, 1e-13}, "seed 22"));
  // Queries and keys are each divided by 50^(1/4).
  std::vector<double> queries = affine(words, p.q);
  for (double& value : queries) value /= std::pow(50.0, 0.25);
  EXPECT_TRUE(compare("queries", saved.q, queries, {1e-13, 1e-14}, "seed 22"));
  for (std::size_t i = 0; i < 6; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < 6; ++j) sum += weights.values<double>()[i * 6 + j];
    EXPECT_NEAR(sum, 1, 1e-15 * 6);
  }
}

}  // namespace
}  // namespace qkv::test
