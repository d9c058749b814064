// SPDX-License-Identifier: Apache-2.0
// Tests properties that the translations of any model have, and searches by models that give each
// token a known probability.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/vocabulary.h>

#include "tests/app/translator/translators.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"

namespace qkv::test {
namespace {

using app::SearchOptions;
using app::TokenPair;
using app::Translation;

std::vector<Translation> translate(const Translator& translator, const std::vector<Tokens>& sources,
                                   const SearchOptions& options, int threads = 1) {
  Context context(Executor::threads(threads));
  return translator.translate(lists_of(sources), options, context);
}

void expect_same_bits(const Translation& got, const Translation& want, const std::string& replay) {
  EXPECT_EQ(got.tokens, want.tokens) << replay;
  EXPECT_EQ(got.log_probability, want.log_probability) << replay;
  ASSERT_EQ(got.attention.given(), want.attention.given()) << replay;
  if (!want.attention.given()) return;
  EXPECT_EQ(got.attention.shape(), want.attention.shape()) << replay;
  EXPECT_EQ(bytes_of(got.attention), bytes_of(want.attention)) << replay;
}

TEST(Translate, OtherSourcesOrderAndThreadsChangeNoBit) {
  // A decoding batch has no room for so many sources.
  const std::vector<Tokens> sources = many_sentences(290, 5);
  std::vector<Tokens> reversed(sources.rbegin(), sources.rend());
  for (const TranslatorAttention attention : kEveryAttention) {
    for (const Index beam : {1, 3}) {
      const DType dtype = beam == 1 ? DType::kFloat64 : DType::kFloat32;
      const Translator translator = random_translator(odd_config(attention, dtype), 3, 0.3);
      const SearchOptions options{.beam = beam, .most_tokens = 3};
      const auto all = translate(translator, sources, options);
      const auto other = translate(translator, reversed, options, beam == 1 ? 2 : 3);
      for (std::size_t n = 0; n < sources.size(); ++n) {
        const std::string replay = replay_of(attention, dtype) + ", beam " + std::to_string(beam) +
                                   ", source " + std::to_string(n);
        expect_same_bits(other[sources.size() - 1 - n], all[n], replay + ", in another order");
        if (n % 30 != 0) continue;
        expect_same_bits(translate(translator, {sources[n]}, options)[0], all[n],
                         replay + ", alone");
      }
    }
  }
}

TEST(Translate, LogProbabilityIsThatOfTheLoss) {
  const std::vector<Tokens> sources = many_sentences(10, 5);
  for (const TranslatorAttention attention : kEveryAttention) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const Translator translator = random_translator(odd_config(attention, dtype), 3, 0.3);
      for (const Index beam : {1, 3}) {
        const auto translations = translate(translator, sources, {.beam = beam});
        for (std::size_t n = 0; n < sources.size(); ++n) {
          const TokenPair pair[] = {{sources[n], translations[n].tokens}};
          Context context;
          RunState run;
          const double want = translator.loss(pair, run, context).log_probability;
          const double bound = dtype == DType::kFloat64 ? 1e-12 : 1e-5;
          EXPECT_NEAR(translations[n].log_probability, want, bound * std::max(1.0, -want))
              << replay_of(attention, dtype) << ", source " << n;
        }
      }
    }
  }
}

TEST(Translate, AttentionIsARowOfProbabilitiesForEachToken) {
  const std::vector<Tokens> sources = many_sentences(30, 5);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    const auto translations = translate(translator, sources, {.beam = 2});
    for (std::size_t n = 0; n < sources.size(); ++n) {
      const Tensor& weights = translations[n].attention;
      const std::string replay = replay_of(attention) + ", source " + std::to_string(n);
      EXPECT_EQ(weights.given(), attention != TranslatorAttention::kNone) << replay;
      if (!weights.given()) continue;
      ASSERT_EQ(weights.shape(), Dims({static_cast<Index>(translations[n].tokens.size()),
                                       static_cast<Index>(sources[n].size())}))
          << replay;
      EXPECT_EQ(weights.dtype(), DType::kFloat32);
      const std::vector<double> values = values_of(weights);
      for (std::size_t row = 0; row < translations[n].tokens.size(); ++row) {
        double sum = 0;
        for (std::size_t j = 0; j < sources[n].size(); ++j) {
          EXPECT_GE(values[row * sources[n].size() + j], 0) << replay;
          sum += values[row * sources[n].size() + j];
        }
        EXPECT_NEAR(sum, 1, 2e-6) << replay;
      }
    }
  }
}

TEST(Translate, AttentionThatIsNotWantedChangesNothingElse) {
  const std::vector<Tokens> sources = many_sentences(10, 5);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    const auto with = translate(translator, sources, {.beam = 2});
    const auto without = translate(translator, sources, {.beam = 2, .attention = false});
    for (std::size_t n = 0; n < sources.size(); ++n) {
      EXPECT_EQ(without[n].tokens, with[n].tokens) << replay_of(attention);
      EXPECT_EQ(without[n].log_probability, with[n].log_probability) << replay_of(attention);
      EXPECT_FALSE(without[n].attention.given()) << replay_of(attention);
    }
  }
}

TEST(Translate, ScoresThatAreNotWantedChangeNothingElse) {
  const std::vector<Tokens> sources = many_sentences(60, 5);
  for (const TranslatorAttention attention : kEveryAttention) {
    const Translator translator = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    for (const Index beam : {1, 2}) {
      const auto with = translate(translator, sources, {.beam = beam});
      auto without = translate(translator, sources,
                               {.beam = beam, .scores = app::SearchScores::kIfCompared}, 2);
      for (std::size_t n = 0; n < sources.size(); ++n) {
        if (beam == 1) {
          EXPECT_TRUE(std::isnan(without[n].log_probability)) << replay_of(attention);
          without[n].log_probability = with[n].log_probability;
        }
        expect_same_bits(without[n], with[n], replay_of(attention) + " " + std::to_string(n));
      }
    }
  }
}

TEST(Translate, UnknownTokensComeFromWhatWasLookedAtMost) {
  const std::vector<Tokens> sources = many_sentences(60, 5);
  for (const TranslatorAttention attention : kEveryAttention) {
    Translator translator = random_translator(odd_config(attention, DType::kFloat32), 3, 0.3);
    translator.parameters().output.parameters().bias.values<float>()[app::Vocabulary::kUnknown] +=
        6;
    int found = 0;
    for (const bool keeps : {true, false}) {
      const auto looked = translate(translator, sources, {.beam = 2});
      const auto got =
          translate(translator, sources,
                    {.beam = 2, .attention = keeps, .unknown = app::UnknownSources::kFound}, 2);
      for (std::size_t n = 0; n < sources.size(); ++n) {
        EXPECT_TRUE(looked[n].unknown_sources.empty());
        EXPECT_EQ(got[n].tokens, looked[n].tokens);
        Tokens want;
        for (std::size_t i = 0; i < looked[n].tokens.size(); ++i) {
          if (looked[n].tokens[i] != app::Vocabulary::kUnknown) continue;
          if (attention == TranslatorAttention::kNone) continue;
          const auto row = looked[n].attention.values<float>().subspan(i * sources[n].size());
          // The source's end token does not count, unless it is the only token.
          const auto end = row.begin() + std::max<std::ptrdiff_t>(std::ssize(sources[n]) - 1, 1);
          want.push_back(
              static_cast<std::int32_t>(std::max_element(row.begin(), end) - row.begin()));
          ++found;
        }
        EXPECT_EQ(got[n].unknown_sources, want) << replay_of(attention) << " " << n;
      }
    }
    EXPECT_EQ(found > 50, attention != TranslatorAttention::kNone) << found;
  }
}

// Decoding batches on several threads have the forced path and the stop flag of the caller's
// context.
TEST(Translate, BatchesHaveTheCallersPathAndStopFlag) {
  const Translator translator =
      random_translator(odd_config(TranslatorAttention::kAdditive, DType::kFloat32), 3, 0.3);
  const std::vector<Tokens> sources = many_sentences(120, 5);
  const auto by_reference = [&](int threads) {
    Context context = context_on("reference", threads);
    return translator.translate(lists_of(sources), {}, context);
  };
  const auto one = by_reference(1);
  const auto two = by_reference(2);
  for (std::size_t n = 0; n < sources.size(); ++n) {
    expect_same_bits(two[n], one[n], "source " + std::to_string(n));
  }
  Context context(Executor::threads(2));
  const std::atomic<bool> stop = true;
  context.set_stop_flag(&stop);
  EXPECT_THROW(translator.translate(lists_of(sources), {}, context), Cancelled);
}

// ---- how long a translation is --------------------------------------------------------------

// A translator that gives each token the probability softmax(scores), whatever precedes it. The
// tokens are padding, start, end, unknown, then words from 4 on.
Translator constant_translator(const std::vector<double>& scores) {
  auto config = small_config(TranslatorAttention::kAdditive);
  config.target_tokens = static_cast<Index>(scores.size());
  Translator translator(config);
  copy(ConstView(scores.data(), Dims(scores.size())),
       translator.parameters().output.parameters().bias);
  return translator;
}

TEST(Translate, TokensAreBounded) {
  const Translator translator = constant_translator({0, 0, -9, 0, 1});  // hardly ever ends
  for (const Index beam : {1, 2}) {
    const auto as_said = translate(translator, {{4, 3, 2}}, {.beam = beam, .most_tokens = 7});
    EXPECT_EQ(as_said[0].tokens, Tokens(7, 4));
    // By default, a translation has at most twice as many tokens as its source, plus ten.
    const auto usual = translate(translator, {{4, 3, 2}, {2}}, {.beam = beam});
    EXPECT_EQ(usual[0].tokens, Tokens(2 * 3 + 10, 4));
    EXPECT_EQ(usual[1].tokens, Tokens(2 * 1 + 10, 4));
    EXPECT_EQ(usual[1].attention.shape(), Dims({12, 1}));
  }
  EXPECT_EQ(translate(translator, {{2}}, {.most_tokens = 1})[0].tokens, Tokens(1, 4));
}

TEST(Translate, NeitherPaddingNorTheStartIsAToken) {
  const Translator translator = constant_translator({9, 8, 0, 1, 2});
  EXPECT_EQ(translate(translator, {{3, 2}}, {.most_tokens = 2})[0].tokens, Tokens({4, 4}));
  EXPECT_EQ(translate(translator, {{3, 2}}, {.beam = 9, .most_tokens = 2})[0].tokens,
            Tokens({4, 2}));  // it has ended, {4, 4} has not
}

// With p(end) = 0.3 and p(4) = 0.6, ending at once is better in total, and repeated 4s are better
// per token.
TEST(Translate, LengthPenaltyComparesByToken) {
  const Translator translator =
      constant_translator({-99, -99, std::log(0.3), std::log(0.1), std::log(0.6)});
  const SearchOptions wide{.beam = 100, .most_tokens = 4};
  const auto with = [&](double penalty) {
    SearchOptions options = wide;
    options.length_penalty = penalty;
    return std::move(translate(translator, {{3, 2}}, options)[0]);
  };
  EXPECT_EQ(with(0).tokens, Tokens({2}));
  EXPECT_NEAR(with(0).log_probability, std::log(0.3), 1e-12);
  EXPECT_EQ(with(1).tokens, Tokens({4, 4, 4, 2}));
  EXPECT_NEAR(with(1).log_probability, std::log(0.6 * 0.6 * 0.6 * 0.3), 1e-12);
}

TEST(Translate, OfEqualTokensTheLowestIsChosen) {
  const Translator translator = constant_translator({0, 0, 0, 0, 0});
  EXPECT_EQ(translate(translator, {{3, 2}}, {})[0].tokens, Tokens({2}));
  const Translator without_end = constant_translator({0, 0, -50, 0, 0});
  EXPECT_EQ(translate(without_end, {{3, 2}}, {.beam = 2, .most_tokens = 3})[0].tokens,
            Tokens({3, 3, 3}));
}

// Shorter sources of a decoding batch are padded; the padding is never read.
TEST(Translate, PaddingIsNeverSeen) {
  for (const TranslatorAttention attention : kEveryAttention) {
    Translator translator = random_translator(small_config(attention));
    const auto want = translate(translator, many_sentences(20, 6), {.beam = 2});
    const double nan = std::numeric_limits<double>::quiet_NaN();
    Tensor& weight = translator.parameters().source_embedding.parameters().weight;
    copy(ConstView(&nan, {1}), slice(weight, 0, 0, 1));
    const auto got = translate(translator, many_sentences(20, 6), {.beam = 2});
    for (std::size_t n = 0; n < want.size(); ++n) {
      expect_same_bits(got[n], want[n], replay_of(attention) + ", source " + std::to_string(n));
    }
  }
}

TEST(Translate, NoSourcesNoTranslations) {
  const Translator translator = random_translator(small_config(TranslatorAttention::kDot));
  EXPECT_TRUE(translate(translator, {}, {}).empty());
}

// ---- NaN ------------------------------------------------------------------------------------

TEST(Translate, NanEndsTheSearch) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const TranslatorAttention attention : kEveryAttention) {
    Translator translator = random_translator(small_config(attention));
    for_each_parameter(translator, [&](const auto& p) {
      const Tensor saved = contiguous(p.value);
      copy(ConstView(&nan, {1}), p.value);
      for (const Index beam : {1, 3}) {
        const auto got = translate(translator, {{4, 5, 2}, {2}}, {.beam = beam});
        const std::string replay = replay_of(attention) + ", " + p.name;
        ASSERT_EQ(got.size(), 2U);
        for (const Translation& one : got) {
          EXPECT_TRUE(one.tokens.empty()) << replay;
          EXPECT_TRUE(std::isnan(one.log_probability)) << replay;
        }
      }
      copy(saved, p.value);
    });
  }
}

}  // namespace
}  // namespace qkv::test
