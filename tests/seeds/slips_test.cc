// SPDX-License-Identifier: Apache-2.0
// Compares listings of the four documents (docs/seeds.md), as typed, with this library: where the
// two agree, and where they differ.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/qkv.h>

#include "tests/seeds/listings.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

constexpr Bound kRounding{1e-12, 1e-13};  // sums of at most 16 products in float64
constexpr Bound kBelowSlip{1e-3, 1e-3};   // a slip changes some number by more

// ---- 000: what comes back is after dropout ------------------------------------------------------

TEST(Seed000, ReturnedWeightsAreThoseAfterDropout) {
  const Tensor q = any({4, 8}, 1);
  const Tensor k = any({6, 8}, 2);
  const Tensor v = any({6, 3}, 3);
  const double p = 0.5;
  Tensor out = zeros({4, 3});
  Tensor weights = zeros({4, 6});
  Tensor dropped = zeros({4, 6});
  attention({q, k, v}, {.score = Dot{}, .dropout = {p, 7}},
            {.out = out, .weights = View(weights), .dropped_weights = View(dropped)});
  int gone = 0;
  for (std::size_t n = 0; n < 24; ++n) {
    const double after = dropped.values<double>()[n];
    gone += after == 0 ? 1 : 0;
    if (after == 0) continue;
    EXPECT_NEAR(after, weights.values<double>()[n] / (1 - p), 1e-15);
  }
  EXPECT_GT(gone, 0);
  EXPECT_LT(gone, 24);
  // The listing replaces p_attn by dropout(p_attn), multiplies it by the values and returns it.
  EXPECT_TRUE(compare("out", out, values_of(bmm(dropped, v)), kRounding, "dropped weights"));
  EXPECT_FALSE(compare("out", out, values_of(bmm(weights, v)), kBelowSlip, "weights before"));
}

// ---- 000, 002, 003: masking by a large negative score -------------------------------------------

struct Fill {
  const char* document;
  double value;
};
// CTest names a test after what this prints.
void PrintTo(const Fill& fill, std::ostream* out) { *out << fill.document; }

constexpr std::array kFills{Fill{"000", -1e9}, Fill{"002", -1e6}, Fill{"003", -1e10}};

class MaskByFill : public testing::TestWithParam<Fill> {
 protected:
  // Two batch entries of three queries and five keys; 1 = may attend. The last query of entry 1 may
  // attend to no key.
  const std::vector<std::uint8_t> keep_{1, 1, 0, 0, 1, /**/ 0, 1, 1, 1, 1, /**/ 1, 1, 1, 1, 1,
                                        0, 0, 1, 0, 0, /**/ 1, 0, 1, 0, 1, /**/ 0, 0, 0, 0, 0};
  const ConstView keep_view_{keep_.data(), {2, 3, 5}};

  // softmax(masked_fill(q k^T, mask == 0, fill)), as all three listings have it.
  Tensor literal_weights(const Tensor& q, const Tensor& k) const {
    Tensor scores = bmm(q, k, Transpose::kYes);
    for (std::size_t n = 0; n < keep_.size(); ++n) {
      if (keep_[n] == 0) scores.values<double>()[n] = GetParam().value;
    }
    return softmax_of(scores);
  }
  Tensor weights(const Tensor& q, const Tensor& k) const {
    Tensor result = zeros({2, 3, 5});
    attention({q, k}, {.score = Dot{}, .masks = {Keep{keep_view_}}}, {.weights = View(result)});
    return result;
  }
};

TEST_P(MaskByFill, EqualsMaskingWhereSomethingIsSeen) {
  const Tensor q = any({2, 3, 4}, 1);
  const Tensor k = any({2, 5, 4}, 2);
  const std::vector<double> want = values_of(literal_weights(q, k));
  const std::vector<double> got = values_of(weights(q, k));
  for (std::size_t n = 0; n < 25; ++n) EXPECT_NEAR(got[n], want[n], 1e-15) << "weight " << n;
}

TEST_P(MaskByFill, SpreadsOverWhatIsMaskedWhereNothingIsSeen) {
  const Tensor q = any({2, 3, 4}, 1);
  const Tensor k = any({2, 5, 4}, 2);
  const std::vector<double> literal = values_of(literal_weights(q, k));
  const std::vector<double> got = values_of(weights(q, k));
  for (std::size_t n = 25; n < 30; ++n) {
    EXPECT_NEAR(literal[n], 0.2, 1e-15);
    EXPECT_EQ(got[n], 0);
  }
}

// If the scores of unmasked keys lie below the fill, the listing attends to masked keys.
TEST_P(MaskByFill, PicksWhatIsMaskedWhereScoresLieBelowTheFill) {
  Tensor q = any({2, 3, 4}, 1);
  Tensor k = zeros({2, 5, 4});
  for (double& x : q.values<double>()) x = -1;
  for (double& x : k.values<double>()) x = -GetParam().value;
  const std::vector<double> literal = values_of(literal_weights(q, k));
  const std::vector<double> got = values_of(weights(q, k));
  // Query 0 of entry 0 may attend to keys 0, 1 and 4; the listing attends to 2 and 3.
  const std::vector<double> masked(literal.begin(), literal.begin() + 5);
  EXPECT_EQ(masked, (std::vector<double>{0, 0, 0.5, 0.5, 0}));
  for (std::size_t j : {0U, 1U, 4U}) EXPECT_NEAR(got[j], 1.0 / 3, 1e-15);
  for (std::size_t j : {2U, 3U}) EXPECT_EQ(got[j], 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, MaskByFill, testing::ValuesIn(kFills),
                         [](const auto& fill) { return std::string(fill.param.document); });

// The three documents' masks are one mask in three senses: 0 = masked, a length, 1 = padding.
TEST(Masks, OfTheDocumentsAreOne) {
  const Tensor q = any({2, 3, 4}, 1);
  const Tensor k = any({2, 5, 4}, 2);
  const std::vector<std::int64_t> keep{1, 1, 0, 0, 0, 1, 1, 1, 1, 0};
  const std::vector<std::int64_t> lengths{2, 4};
  const std::vector<std::int64_t> padding{0, 0, 1, 1, 1, 0, 0, 0, 0, 1};
  const auto weights = [&](const Mask& mask) {
    Tensor result = zeros({2, 3, 5});
    attention({q, k}, {.masks = {mask}}, {.weights = View(result)});
    return values_of(result);
  };
  const std::vector<double> want = weights(KeyLengths{lengths});
  EXPECT_EQ(weights(Keep{ConstView(keep.data(), {2, 1, 5})}), want);
  EXPECT_EQ(weights(Padding{ConstView(padding.data(), {2, 5})}), want);
  EXPECT_NE(weights(Keep{ConstView(padding.data(), {2, 1, 5})}), want);
  EXPECT_EQ(std::count(want.begin(), want.end(), 0.0), 3 * 3 + 3 * 1);
}

// ---- 002: masked_softmax ------------------------------------------------------------------------

TEST(Seed002, MaskedSoftmaxOverwritesItsInputThereAndNotHere) {
  const std::vector<std::int64_t> lengths{2, 3};
  const Tensor scores = any({2, 2, 4}, 5);
  Tensor theirs = contiguous(scores);
  const Tensor literal = literal_masked_softmax(theirs, lengths);
  EXPECT_NE(values_of(theirs), values_of(scores));
  EXPECT_EQ(theirs.view().at<double>({0, 0, 2}), -1e6);

  const Tensor ours = contiguous(scores);
  Tensor weights = zeros({2, 2, 4});
  masked_softmax(ours, lengths, weights);
  EXPECT_EQ(values_of(ours), values_of(scores));
  EXPECT_TRUE(compare("weights", weights, values_of(literal), {0, 1e-15}, "lengths 2, 3"));
}

TEST(Seed002, ALengthOfZeroIsUniformThereAndZeroHere) {
  const std::vector<std::int64_t> lengths{0, 3};
  const Tensor scores = any({2, 2, 4}, 5);
  Tensor theirs = contiguous(scores);
  const std::vector<double> literal = values_of(literal_masked_softmax(theirs, lengths));
  Tensor weights = zeros({2, 2, 4});
  masked_softmax(scores, lengths, weights);
  for (std::size_t n = 0; n < 8; ++n) {
    EXPECT_EQ(literal[n], 0.25);
    EXPECT_EQ(weights.values<double>()[n], 0);
  }
  for (std::size_t n = 8; n < 16; ++n) {
    EXPECT_NEAR(weights.values<double>()[n], literal[n], 1e-15);
  }

  // For a length of 0 the output of the listing's layer is the mean of all values, and here 0.
  const Tensor q = any({2, 1, 2}, 6);
  const Tensor k = any({2, 4, 2}, 7);
  const Tensor v = any({2, 4, 3}, 8);
  RunState run;
  DotProductAttention::Saved saved;
  Tensor out = zeros({2, 1, 3});
  DotProductAttention().forward({q, k, v, lengths}, run, saved, {.out = out});
  Tensor zero_scores = zeros({2, 1, 4});
  const Tensor literal_out = bmm(literal_masked_softmax(zero_scores, lengths), v);
  for (Index c = 0; c < 3; ++c) {
    double mean = 0;
    for (Index j = 0; j < 4; ++j) mean += v.view().at<double>({0, j, c}) / 4;
    EXPECT_NEAR(literal_out.view().at<double>({0, 0, c}), mean, 1e-15);
    EXPECT_EQ(out.view().at<double>({0, 0, c}), 0);
    EXPECT_NE(out.view().at<double>({1, 0, c}), 0);
  }
}

// ---- 002: the PyTorch listing projects queries with W_k and keys with W_q -----------------------

class SwappedWeights : public testing::Test {
 protected:
  SwappedWeights() { initialise(layer_, 11); }

  Tensor scores_of(const AdditiveAttention& layer) const {
    RunState run;
    AdditiveAttention::Saved saved;
    Tensor out = zeros({2, 3, 2});
    Tensor scores = zeros({2, 3, 5});
    layer.forward({q_, k_, v_}, run, saved, {.out = out, .raw_scores = View(scores)});
    return scores;
  }

  Tensor q_ = any({2, 3, 4}, 1);
  Tensor k_ = any({2, 5, 4}, 2);
  Tensor v_ = any({2, 5, 2}, 3);
  AdditiveAttention layer_{4, 4, 6, 0, DType::kFloat64};
};

TEST_F(SwappedWeights, HereTheyAreThoseOfEquation7) {
  const auto& p = layer_.parameters();
  EXPECT_TRUE(compare("scores", scores_of(layer_), values_of(equation_7(q_, k_, p)), kRounding,
                      "initialise(layer, 11)"));
}

TEST_F(SwappedWeights, ThereTheyAreOthersUnlessSwappedBack) {
  const Tensor literal = literal_mlp_scores(q_, k_, layer_.parameters());
  EXPECT_FALSE(compare("scores", scores_of(layer_), values_of(literal), kBelowSlip, "as typed"));
  AdditiveAttention swapped(4, 4, 6, 0, DType::kFloat64);
  swapped.parameters().w_q = contiguous(ConstView(layer_.parameters().w_k));
  swapped.parameters().w_k = contiguous(ConstView(layer_.parameters().w_q));
  swapped.parameters().v = contiguous(ConstView(layer_.parameters().v));
  EXPECT_TRUE(compare("scores", scores_of(swapped), values_of(literal), kRounding, "swapped back"));
}

TEST_F(SwappedWeights, ThereWidthsMustBeEqualAndHereNot) {
  AdditiveAttention layer(3, 4, 6, 0, DType::kFloat64);
  initialise(layer, 12);
  q_ = any({2, 3, 3}, 4);
  EXPECT_TRUE(compare("scores", scores_of(layer), values_of(equation_7(q_, k_, layer.parameters())),
                      kRounding, "initialise(layer, 12)"));
  EXPECT_NE(error_of([&] { literal_mlp_scores(q_, k_, layer.parameters()); }), "");
}

// ---- 003: dropout in evaluation -----------------------------------------------------------------

class SplitForm : public testing::Test {
 protected:
  struct Result {
    std::vector<double> out;
    std::vector<double> dropped;
  };

  Result forward(const MultiHeadAttention& layer, RunState& run) const {
    MultiHeadAttention::Saved saved;
    Tensor out = zeros(x_.shape());
    Tensor dropped = zeros({2, 4, 6, 6});
    layer.forward({x_, x_, x_}, run, saved, {.out = out, .dropped_weights = View(dropped)});
    return {values_of(out), values_of(dropped)};
  }

  MultiHeadAttention layer(std::optional<double> dropout) const {
    MultiHeadAttention result(
        {.width = 16, .heads = 4, .dropout = dropout, .dtype = DType::kFloat64});
    initialise(result, 13);
    return result;
  }

  const Tensor x_ = any({2, 6, 16}, 1);
};

TEST_F(SplitForm, HasNoDropoutInEvaluation) {
  const MultiHeadAttention tenth = layer({});
  EXPECT_EQ(tenth.config().dropout, 0.1);
  RunState run{Mode::kEvaluate, 3};
  const Result first = forward(tenth, run);
  const Result second = forward(tenth, run);
  const Result without = forward(layer(0.0), run);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.out, without.out);
  EXPECT_EQ(std::count(first.dropped.begin(), first.dropped.end(), 0.0), 0);
  EXPECT_EQ(run.step, 0U);
}

// F.dropout(alpha, p=0.1) drops in every mode, as the layer here does only in training.
TEST_F(SplitForm, AsTypedDropsAlways) {
  const MultiHeadAttention tenth = layer({});
  RunState evaluate{Mode::kEvaluate, 3};
  RunState train{Mode::kTrain, 3};
  const std::vector<double> meant = forward(tenth, evaluate).out;
  const Result first = forward(tenth, train);
  const Result second = forward(tenth, train);
  EXPECT_EQ(train.step, 2U);
  EXPECT_NE(first.out, second.out);
  EXPECT_NE(first.out, meant);
  const auto gone = std::count(first.dropped.begin(), first.dropped.end(), 0.0);
  EXPECT_GT(gone, 5);  // about 29 of 288
  EXPECT_LT(gone, 60);

  const Tensor literal = literal_split_form(x_, tenth.parameters(), 4, {0.1, 14});
  EXPECT_FALSE(compare("out", literal, meant, kBelowSlip, "as typed"));
  const Tensor undropped = literal_split_form(x_, tenth.parameters(), 4, {});
  EXPECT_TRUE(compare("out", undropped, meant, kRounding, "as typed, without dropout"));
}

}  // namespace
}  // namespace qkv::test
