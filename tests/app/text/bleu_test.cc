// SPDX-License-Identifier: Apache-2.0
#include "text/bleu.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "text/text.h"

namespace qkv::app {
namespace {

using Tokens = std::vector<std::string>;
constexpr double kBound = 1e-10;

struct Pair {
  Tokens hypothesis{};
  std::vector<Tokens> references{};
};

Bleu bleu_of_pairs(const std::vector<Pair>& pairs) {
  BleuCounts sum;
  for (const Pair& pair : pairs) sum += bleu_counts(pair.hypothesis, pair.references);
  return bleu_of(sum);
}

Bleu bleu_of_words(std::string_view hypothesis, const std::vector<std::string_view>& references) {
  Pair pair{tokenize(hypothesis), {}};
  for (const std::string_view reference : references)
    pair.references.push_back(tokenize(reference));
  return bleu_of_pairs({pair});
}

void expect_precisions(const Bleu& bleu, const std::array<double, kBleuOrders>& want) {
  for (std::size_t n = 0; n < kBleuOrders; ++n) {
    EXPECT_NEAR(bleu.precisions[n], want[n], kBound) << n + 1;
  }
}

TEST(Bleu, IsAHundredForTheReference) {
  const Bleu bleu = bleu_of_words("a b c d e", {"a b c d e"});
  EXPECT_DOUBLE_EQ(bleu.score, 100);
  expect_precisions(bleu, {100, 100, 100, 100});
  EXPECT_EQ(bleu.hypothesis_tokens, 5);
}

// Example 2 of Papineni et al. 2002: the reference has "the" twice, so two of the seven tokens
// match. No bigram or longer n-gram does.
TEST(Bleu, CountsAnNgramNoOftenerThanTheReference) {
  const Bleu bleu = bleu_of_words("the the the the the the the", {"the cat is on the mat"});
  expect_precisions(bleu, {200.0 / 7, 100.0 / 2 / 6, 100.0 / 4 / 5, 100.0 / 8 / 4});
}

// By hand, 5 of 6 tokens, 3 of 5 bigrams, 2 of 4 trigrams, 1 of 3 four-grams match; c = r = 6.
TEST(Bleu, IsTheGeometricMeanOfFourPrecisions) {
  const Bleu bleu = bleu_of_words("the cat sat on a mat", {"the cat sat on the mat"});
  expect_precisions(bleu, {100 * 5.0 / 6, 60, 50, 100.0 / 3});
  EXPECT_NEAR(bleu.score, 100 * std::pow(5.0 / 6 * 3 / 5 * 2 / 4 / 3, 0.25), kBound);
}

// By hand, two of "the" match, as in the first reference, and three of "cat", as in the second;
// counts of the references are not added. 4 of 6 bigrams, 3 of 5 trigrams, 1 of 4 four-grams match.
TEST(Bleu, TakesTheReferenceThatHasMostOfAnNgram) {
  const Bleu bleu =
      bleu_of_words("the the the cat cat cat cat", {"the the cat", "the cat cat cat"});
  expect_precisions(bleu, {500.0 / 7, 400.0 / 6, 300.0 / 5, 100.0 / 4});
}

TEST(Bleu, ShortTranslationsPay) {
  const Bleu bleu = bleu_of_words("a b c d", {"a b c d e f"});
  EXPECT_NEAR(bleu.brevity_penalty, 100 * std::exp(-0.5), kBound);
  EXPECT_NEAR(bleu.score, 100 * std::exp(-0.5), kBound);
  EXPECT_EQ(bleu_of_words("a b c d e f", {"a b c d"}).brevity_penalty, 100);
  EXPECT_EQ(bleu.reference_tokens, 6);
}

TEST(Bleu, LengthIsThatOfTheNearestReference) {
  const auto length = [](const std::vector<std::string_view>& references) {
    return bleu_of_words("a b c d", references).reference_tokens;
  };
  EXPECT_EQ(length({"a", "a b c d e", "a b c d e f g"}), 5);
  EXPECT_EQ(length({"a b c d e", "a b c"}), 3);  // the shorter of two equally near ones
  EXPECT_EQ(length({"a b c", "a b c d e"}), 3);
}

// By hand, 4 of 4 tokens and 1 of 3 bigrams match. None of the 2 trigrams does, which counts as 1/2
// of a match, nor does the four-gram, which counts as 1/4.
TEST(Bleu, SmoothingHalvesWhatDoesNotMatch) {
  const Bleu bleu = bleu_of_words("b a c d", {"a b c d"});
  expect_precisions(bleu, {100, 100.0 / 3, 100.0 / 2 / 2, 100.0 / 4});
  EXPECT_NEAR(bleu.score, 100 * std::pow(1.0 / 3 / 4 / 4, 0.25), kBound);
}

TEST(Bleu, IsNothingWhereNothingMatches) {
  EXPECT_EQ(bleu_of_pairs({}).score, 0);
  EXPECT_EQ(bleu_of_words("", {"a b c d"}).score, 0);
  EXPECT_EQ(bleu_of_words("", {"a b c d"}).brevity_penalty, 0);
  EXPECT_EQ(bleu_of_words("a b c d", {""}).score, 0);
  EXPECT_EQ(bleu_of_words("a b c d", {"e f g h"}).score, 0);
  EXPECT_EQ(bleu_of_words("a b c", {"a b c"}).score, 0);  // no four-gram
}

// The tokens "ab" "c" and "a" "bc" have the same letters but do not match.
TEST(Bleu, ComparesTokensNotLetters) {
  const Bleu bleu = bleu_of_pairs({{{"ab", "c", "d"}, {{"a", "bc", "d"}}}});
  expect_precisions(bleu, {100.0 / 3, 100.0 / 2 / 2, 100.0 / 4 / 1, 0});
}

// By hand, 5 of 11 tokens, 4 of 9 bigrams, 3 of 7 trigrams and 2 of 5 four-grams match. The mean of
// the sentences' scores would be 50.
TEST(Bleu, SumsOverTheCorpus) {
  const Tokens right{"a", "b", "c", "d", "e"};
  const Tokens wrong{"u", "v", "w", "x", "y", "z"};
  const Bleu bleu = bleu_of_pairs({{right, {right}}, {wrong, {right}}});
  EXPECT_NEAR(bleu.score, 100 * std::pow(5.0 / 11 * 4 / 9 * 3 / 7 * 2 / 5, 0.25), kBound);
}

// A corpus of random pairs, equal to that of the program that computed AgreesWithAnotherProgram's
// numbers.
std::vector<Pair> random_corpus(std::uint64_t state, int pairs, std::uint64_t words) {
  const auto below = [&](std::uint64_t bound) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % bound;
  };
  const auto word = [&] { return std::string(1, static_cast<char>('a' + below(words))); };
  std::vector<Pair> corpus(static_cast<std::size_t>(pairs));
  for (Pair& pair : corpus) {
    Tokens& reference = pair.references.emplace_back();
    for (auto n = below(12); n > 0; --n) reference.push_back(word());
    for (const std::string& token : reference) {
      const auto change = below(8);
      if (change > 0) pair.hypothesis.push_back(change == 1 ? word() : token);
      if (change == 2) pair.hypothesis.push_back(token);
    }
  }
  return corpus;
}

// The expected numbers were computed in Python with collections.Counter and fractions, from the
// paper's formulas.
TEST(Bleu, AgreesWithAnotherProgram) {
  struct Case {
    std::uint64_t seed;
    int pairs;
    std::uint64_t words;
    double score;
    std::array<double, kBleuOrders> precisions;
    double penalty;
  };
  const Case cases[] = {
      {1,
       50,
       5,
       46.339596291980335,
       {81.29496402877699, 62.66094420600859, 38.21989528795812, 23.684210526315788},
       100},
      {2,
       200,
       26,
       43.69688493037421,
       {76.88723205964585, 57.27069351230425, 36.72627235213205, 22.797927461139896},
       99.72080055388865},
      {4,
       4,
       26,
       25.07018083428974,
       {64.70588235294117, 38.46153846153847, 22.22222222222222, 7.142857142857142},
       100},
      {12,
       2,
       26,
       35.99191854472086,
       {73.91304347826086, 52.38095238095239, 36.84210526315789, 11.76470588235294},
       100},
      {7, 2, 3, 0, {75, 50, 0, 0}, 60.653065971263345}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.seed);
    const auto corpus = random_corpus(one.seed, one.pairs, one.words);
    const Bleu bleu = bleu_of_pairs(corpus);
    EXPECT_NEAR(bleu.score, one.score, kBound);
    EXPECT_NEAR(bleu.brevity_penalty, one.penalty, kBound);
    expect_precisions(bleu, one.precisions);
  }
}

}  // namespace
}  // namespace qkv::app
