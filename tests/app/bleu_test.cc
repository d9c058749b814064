// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/bleu.h>
#include <qkv/app/text.h>

namespace qkv::app {
namespace {

using Tokens = std::vector<std::string>;
constexpr double kBound = 1e-10;

struct Pair {
  Tokens hypothesis{};
  Tokens reference{};
};

Bleu bleu_of(const std::vector<Pair>& pairs, BleuSmoothing smoothing) {
  BleuCounter counter;
  for (const Pair& pair : pairs) counter.add(pair.hypothesis, pair.reference);
  return counter.result(smoothing);
}

Bleu bleu_of(std::string_view hypothesis, std::string_view reference,
             BleuSmoothing smoothing = BleuSmoothing::kNone) {
  return bleu_of({{tokenize(hypothesis), tokenize(reference)}}, smoothing);
}

void expect_precisions(const Bleu& bleu, const std::array<double, kBleuOrders>& want) {
  for (std::size_t n = 0; n < kBleuOrders; ++n) {
    EXPECT_NEAR(bleu.precisions[n], want[n], kBound) << n + 1;
  }
}

TEST(Bleu, IsAHundredForTheReference) {
  const Bleu bleu = bleu_of("a b c d e", "a b c d e");
  EXPECT_DOUBLE_EQ(bleu.score, 100);
  expect_precisions(bleu, {100, 100, 100, 100});
  EXPECT_EQ(bleu.hypothesis_tokens, 5);
}

// Example 2 of Papineni et al. 2002: the reference has "the" twice.
TEST(Bleu, CountsAnNgramNoOftenerThanTheReference) {
  const Bleu bleu = bleu_of("the the the the the the the", "the cat is on the mat");
  expect_precisions(bleu, {200.0 / 7, 0, 0, 0});
  EXPECT_EQ(bleu.score, 0);
}

// By hand: 5 of 6 tokens, 3 of 5 pairs, 2 of 4 triples, 1 of 3 fours; c = r = 6.
TEST(Bleu, IsTheGeometricMeanOfFourPrecisions) {
  const Bleu bleu = bleu_of("the cat sat on a mat", "the cat sat on the mat");
  expect_precisions(bleu, {100 * 5.0 / 6, 60, 50, 100.0 / 3});
  EXPECT_NEAR(bleu.score, 100 * std::pow(5.0 / 6 * 3 / 5 * 2 / 4 / 3, 0.25), kBound);
}

TEST(Bleu, ShortTranslationsPay) {
  const Bleu bleu = bleu_of("a b c d", "a b c d e f");
  EXPECT_NEAR(bleu.brevity_penalty, 100 * std::exp(-0.5), kBound);
  EXPECT_NEAR(bleu.score, 100 * std::exp(-0.5), kBound);
  EXPECT_EQ(bleu_of("a b c d e f", "a b c d").brevity_penalty, 100);
  EXPECT_EQ(bleu.reference_tokens, 6);
}

// By hand: 4 of 4, 1 of 3; no triple of 2, no four of 1.
TEST(Bleu, SmoothingHalvesWhatDoesNotMatch) {
  const Bleu bleu = bleu_of("b a c d", "a b c d", BleuSmoothing::kExponential);
  expect_precisions(bleu, {100, 100.0 / 3, 100.0 / 2 / 2, 100.0 / 4});
  EXPECT_NEAR(bleu.score, 100 * std::pow(1.0 / 3 / 4 / 4, 0.25), kBound);
  EXPECT_EQ(bleu_of("b a c d", "a b c d").score, 0);
}

TEST(Bleu, IsNothingWhereNothingMatches) {
  for (const auto smoothing : {BleuSmoothing::kNone, BleuSmoothing::kExponential}) {
    EXPECT_EQ(bleu_of({}, smoothing).score, 0);
    EXPECT_EQ(bleu_of({}, smoothing).brevity_penalty, 0);
    EXPECT_EQ(bleu_of("", "a b c d", smoothing).score, 0);
    EXPECT_EQ(bleu_of("a b c d", "", smoothing).score, 0);
    EXPECT_EQ(bleu_of("a b c d", "e f g h", smoothing).score, 0);
    EXPECT_EQ(bleu_of("a b c", "a b c", smoothing).score, 0);  // no four tokens
  }
}

// "ab" "c" and "a" "bc" are no match.
TEST(Bleu, ComparesTokensNotLetters) {
  const Bleu bleu = bleu_of({{{"ab", "c", "d"}, {"a", "bc", "d"}}}, BleuSmoothing::kNone);
  expect_precisions(bleu, {100.0 / 3, 0, 0, 0});
}

// By hand: 5 of 11 tokens, 4 of 9 pairs, 3 of 7 triples, 2 of 5 fours. The mean would be 50.
TEST(Bleu, SumsOverTheCorpus) {
  const Tokens right{"a", "b", "c", "d", "e"};
  const Tokens wrong{"u", "v", "w", "x", "y", "z"};
  const Bleu bleu = bleu_of({{right, right}, {wrong, right}}, BleuSmoothing::kNone);
  EXPECT_NEAR(bleu.score, 100 * std::pow(5.0 / 11 * 4 / 9 * 3 / 7 * 2 / 5, 0.25), kBound);
}

// What the program that worked out the numbers below made too.
std::vector<Pair> random_corpus(std::uint64_t state, int pairs, std::uint64_t words) {
  const auto below = [&](std::uint64_t bound) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % bound;
  };
  const auto word = [&] { return std::string(1, static_cast<char>('a' + below(words))); };
  std::vector<Pair> corpus(static_cast<std::size_t>(pairs));
  for (Pair& pair : corpus) {
    for (auto n = below(12); n > 0; --n) pair.reference.push_back(word());
    for (const std::string& token : pair.reference) {
      const auto change = below(8);
      if (change > 0) pair.hypothesis.push_back(change == 1 ? word() : token);
      if (change == 2) pair.hypothesis.push_back(token);
    }
  }
  return corpus;
}

// Worked out in Python with collections.Counter and fractions, from the paper's formulas.
TEST(Bleu, AgreesWithAnotherProgram) {
  struct Case {
    std::uint64_t seed;
    int pairs;
    std::uint64_t words;
    double score;
    double smoothed;
    std::array<double, kBleuOrders> precisions;  // smoothed
    double penalty;
  };
  const Case cases[] = {
      {1,
       50,
       5,
       46.339596291980335,
       46.339596291980335,
       {81.29496402877699, 62.66094420600859, 38.21989528795812, 23.684210526315788},
       100},
      {2,
       200,
       26,
       43.69688493037421,
       43.69688493037421,
       {76.88723205964585, 57.27069351230425, 36.72627235213205, 22.797927461139896},
       99.72080055388865},
      {4,
       4,
       26,
       0,
       25.07018083428974,
       {64.70588235294117, 38.46153846153847, 22.22222222222222, 7.142857142857142},
       100},
      {12,
       2,
       26,
       35.99191854472086,
       35.99191854472086,
       {73.91304347826086, 52.38095238095239, 36.84210526315789, 11.76470588235294},
       100},
      {7, 2, 3, 0, 0, {75, 50, 0, 0}, 60.653065971263345}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.seed);
    const auto corpus = random_corpus(one.seed, one.pairs, one.words);
    EXPECT_NEAR(bleu_of(corpus, BleuSmoothing::kNone).score, one.score, kBound);
    const Bleu bleu = bleu_of(corpus, BleuSmoothing::kExponential);
    EXPECT_NEAR(bleu.score, one.smoothed, kBound);
    EXPECT_NEAR(bleu.brevity_penalty, one.penalty, kBound);
    expect_precisions(bleu, one.precisions);
  }
}

}  // namespace
}  // namespace qkv::app
