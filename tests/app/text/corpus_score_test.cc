// SPDX-License-Identifier: Apache-2.0
#include "text/corpus_score.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "files/parallel_text.h"
#include "text/numbers.h"
#include "text/sentences.h"
#include "text/tokenize_13a.h"

namespace qkv::app {
namespace {

using Texts = std::vector<std::string>;

std::string joined(const Texts& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += (text.empty() ? "" : " ") + token;
  return text;
}

// A row of sacrebleu.tsv, and the rows "sentence" that follow it.
struct Row {
  Texts fields{};
  std::vector<Texts> sentences{};
};
std::vector<Row> rows_of(std::string_view kind) {
  std::vector<Row> rows;
  for (const Texts& fields : read_parallel_text(QKV_SOURCE_DIR "/tests/app/text/sacrebleu.tsv")) {
    if (fields[0] == kind) rows.push_back({fields, {}});
    if (fields[0] == "sentence" && kind == "corpus") {
      rows.back().sentences.emplace_back(fields.begin() + 1, fields.end());
    }
  }
  return rows;
}

TEST(Sacrebleu, AgreesOnTokens) {
  const std::vector<Row> rows = rows_of("tokens");
  EXPECT_GE(rows.size(), 30U);
  for (const Row& row : rows) {
    EXPECT_EQ(joined(tokenize_13a(row.fields.at(1))), row.fields.at(2)) << row.fields.at(1);
  }
}

TEST(Sacrebleu, AgreesOnScores) {
  constexpr double kBound = 1e-8;  // the precision of the table
  const std::vector<Row> rows = rows_of("corpus");
  EXPECT_GE(rows.size(), 15U);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.fields.at(1));
    std::vector<SentenceCounts> counts;
    Signature signature;
    for (const Texts& sentence : row.sentences) {
      const std::span references = std::span(sentence).subspan(1);
      counts.push_back(sentence_counts(sentence.at(0), references));
      signature.add(std::ssize(references));
    }
    const CorpusScore score = corpus_score(counts);
    EXPECT_NEAR(score.bleu.score, parse_number<double>(row.fields.at(3)).value(), kBound);
    EXPECT_NEAR(score.chrf, parse_number<double>(row.fields.at(4)).value(), kBound);
    EXPECT_EQ(signature.bleu().find("nrefs:" + row.fields.at(2) + "|"), 0U) << signature.bleu();
  }
}

// mteval-v13a.pl joins a word that is hyphenated at the end of a line.
TEST(Tokenize13a, JoinsHyphenatedWordsAsMteval) {
  EXPECT_EQ(joined(tokenize_13a("a well-\nknown\nline -\n")), "a wellknown line -");
  EXPECT_THROW(tokenize_13a("a\xFF"), Error);
}

double chrf(std::string_view translation, const Texts& references) {
  return chrf_of(chrf_counts(translation, references));
}

// By hand, 2 of 3 characters, 1 of 2 bigrams and 0 of 1 trigrams match. Neither text has four
// characters, so the means are over three orders.
TEST(Chrf, IsTheFScoreOfMeans) {
  const double p = (2.0 / 3 + 1.0 / 2 + 0) / 3;
  EXPECT_NEAR(chrf("a b x", {"ab y"}), 100 * p, 1e-10);
}

// By hand, the mean precision is 1 and the mean recall (2/4 + 1/3) / 2. Recall has four times the
// weight of precision.
TEST(Chrf, RecallCountsFourTimes) {
  const double r = (2.0 / 4 + 1.0 / 3) / 2;
  EXPECT_NEAR(chrf("ab", {"abcd"}), 100 * 5 * r / (4 + r), 1e-10);
  EXPECT_NEAR(chrf("abcd", {"ab"}), 100 * 5 * r / (4 * r + 1), 1e-10);
}

TEST(Chrf, CharactersAreCodePointsWithoutWhiteSpace) {
  EXPECT_EQ(chrf("é t\u00a0é\u3000s", {"étés"}), 100);
  EXPECT_NEAR(chrf("é", {"è"}), 0, 0);
  EXPECT_GT(chrf("e\u0301", {"e"}), 0);  // one of two code points matches
  EXPECT_THROW(chrf("\xFF", {"a"}), Error);
}

TEST(Chrf, TakesTheBestReferenceAlone) {
  const double alone = chrf("abcdef", {"abcdex"});
  EXPECT_EQ(chrf("abcdef", {"zzz", "abcdex", "uvwdef"}), alone);
  EXPECT_EQ(chrf("", {"a", "b"}), 0);
  EXPECT_EQ(chrf("a", {""}), 0);
}

TEST(SentenceCounts, ExactIsTheTextButForSpacesAndQuotes) {
  const auto exact = [](std::string_view translation, const Texts& references) {
    return sentence_counts(translation, references).exact;
  };
  EXPECT_EQ(exact("l'été  vient !", {"non", "l’été vient\u202f!"}), 1);
  EXPECT_EQ(exact("l'été vient !", {"l'été vient!"}), 0);
  EXPECT_EQ(exact("L'été", {"l'été"}), 0);
  EXPECT_EQ(exact("a", {"a", "a"}), 1);
}

TEST(Signature, NamesWhatWasDone) {
  Signature signature;
  signature.add(2);
  EXPECT_EQ(signature.bleu(), "nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:qkv-0.1.0");
  signature.add(2);
  EXPECT_EQ(signature.chrf(), "nrefs:2|case:mixed|eff:yes|nc:6|nw:0|space:no|version:qkv-0.1.0");
  signature.add(1);
  const Resampling resampling{.samples = 50, .seed = 7};
  EXPECT_EQ(signature.bleu(resampling),
            "nrefs:var|bs:50|seed:7|case:mixed|eff:no|tok:13a|smooth:exp|version:qkv-0.1.0");
}

// Translations by two systems: `right` are the references, and `wrong` differs from them in every
// `period`-th sentence.
struct Systems {
  Systems(int sentences, int period) {
    for (int n = 0; n < sentences; ++n) {
      const std::string word = "w" + std::to_string(n * n % 97);
      const Texts references{"a " + word + " b c d e"};
      right.push_back(sentence_counts(references[0], references));
      wrong.push_back(sentence_counts(n % period == 0 ? "a x b c d e" : references[0], references));
    }
  }
  std::vector<SentenceCounts> right{};
  std::vector<SentenceCounts> wrong{};
};

TEST(PairedBootstrap, TellsChanceFromADifference) {
  const Resampling resampling{.samples = 200, .seed = 3};
  const Systems far(100, 2);
  // No sample counts, so p is the smallest that 200 samples can give.
  EXPECT_DOUBLE_EQ(paired_bootstrap(far.right, far.wrong, resampling).bleu, 1.0 / 201);
  EXPECT_DOUBLE_EQ(paired_bootstrap(far.wrong, far.right, resampling).chrf, 1.0 / 201);
  // The systems differ in one sentence of a hundred: about a third of the samples do not have it,
  // and a quarter have it more than once.
  const PairedTest near =
      paired_bootstrap(Systems(100, 100).right, Systems(100, 100).wrong, resampling);
  EXPECT_GT(near.bleu, 0.05);
  EXPECT_LT(near.bleu, 0.4);
}

TEST(PairedBootstrap, OfTheSameSystem) {
  const Systems systems(20, 2);
  const PairedTest same =
      paired_bootstrap(systems.right, systems.right, {.samples = 99, .seed = 0});
  EXPECT_EQ(same.bleu, 1);
  EXPECT_EQ(same.chrf, 1);
}

// Samples depend on the seed alone, so that a reported p can be computed again. A script with the
// draws of tests/oracle_philox.py counted the 79 and 88 samples. Each sentence has 6, 5, 4 and 3
// n-grams of the four orders; the sentence that differs lacks 1, 2, 2 and 2 of its matches.
TEST(PairedBootstrap, IsAFunctionOfTheSeed) {
  const Systems systems(100, 100);
  const auto p = [&](std::uint64_t seed) {
    return paired_bootstrap(systems.right, systems.wrong, {.samples = 1000, .seed = seed}).bleu;
  };
  EXPECT_DOUBLE_EQ(p(1), (79 + 1) / 1001.0);
  EXPECT_DOUBLE_EQ(p(2), (88 + 1) / 1001.0);
}

TEST(Sentences, GroupPairsBySource) {
  Sentences sentences;
  EXPECT_EQ(sentences.add("Don't go.", "Ne pars pas."), 0U);
  EXPECT_EQ(sentences.add("Go.", "Va !"), 1U);
  EXPECT_EQ(sentences.add(" Don’t\u00a0 go. ", "Reste."), 0U);
  EXPECT_EQ(sentences.add("don't go.", "x"), 2U);
  EXPECT_EQ(sentences.find("Go. "), 1U);
  EXPECT_EQ(sentences.find("Run."), 3U);
  EXPECT_EQ(sentences.all()[0].source, "Don't go.");
  EXPECT_EQ(sentences.all()[0].references, (Texts{"Ne pars pas.", "Reste."}));
}

TEST(Folded, SpacesAndQuotesOnly) {
  EXPECT_EQ(folded_text("\u202f« A ’b” »\t c "), "« A 'b\" » c");
  EXPECT_EQ(folded_text(" \u00a0"), "");
  EXPECT_EQ(folded_text("\u200b \ufeff\u200d"), "");
  EXPECT_EQ(folded_text("a\u200b"), "a\u200b");
  EXPECT_THROW(folded_text("\xFF"), Error);
}

}  // namespace
}  // namespace qkv::app
