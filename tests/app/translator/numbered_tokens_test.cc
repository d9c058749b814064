// SPDX-License-Identifier: Apache-2.0
// Tests texts that are stored as token numbers, and reading a file of sentence pairs on any number
// of threads.
#include "translator/data/numbered_tokens.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/file_error.h>

#include "tests/app/files/files.h"
#include "translator/data/tasks.h"
#include "translator/training/translation_data.h"

namespace qkv::app {
namespace {

using Texts = std::vector<std::vector<std::string>>;

const Texts kTexts{{"b", "a", "b"}, {}, {"c"}, {"a", "c", "d"}, {"b"}};

NumberedTexts numbered(const Texts& texts) {
  NumberedTexts result;
  for (const auto& text : texts) result.add(text);
  return result;
}

TEST(NumberedTexts, GiveTheVocabularyAndTheIdsOfTheirTokens) {
  for (const Index min_count : {1, 2, 9}) {
    app::VocabularyBuilder builder;
    for (const auto& text : kTexts) builder.add(text);
    const app::Vocabulary want = builder.build(min_count);
    for (std::size_t cut = 0; cut <= kTexts.size(); ++cut) {
      const auto middle = kTexts.begin() + static_cast<std::ptrdiff_t>(cut);
      NumberedTexts texts = numbered({kTexts.begin(), middle});
      texts.append(numbered({middle, kTexts.end()}));
      const app::Vocabulary got = texts.vocabulary(min_count);
      EXPECT_TRUE(std::ranges::equal(got.tokens(), want.tokens())) << min_count << " " << cut;
      const auto ids = texts.take_ids(got);
      ASSERT_EQ(ids.size(), kTexts.size());
      for (std::size_t n = 0; n < ids.size(); ++n) EXPECT_EQ(ids[n], want.encode(kTexts[n]));
      EXPECT_TRUE(texts.take_ids(got).empty());
    }
  }
}

// `count` lines of a word and its reverse; every seventh target has three more words. The reader
// splits lines in blocks of 1,024.
std::string lines(Index count) {
  std::string text;
  for (Index n = 0; n < count; ++n) {
    const app::Example example = app::reverse_example(1, n);
    text +=
        example.source + "\t“" + example.target + "”!" + (n % 7 == 0 ? " yes and no" : "") + "\n";
  }
  return text;
}

TranslationData data_of(const app::TrainingOptions& options) {
  return read_translation_data(options, std::nullopt, {});
}

TEST(TranslationData, IsTheSameOnAnyThreads) {
  const test::Directory directory;
  app::TrainingOptions options;
  options.data = directory.write("train.tsv", lines(2500));
  options.valid = directory.write("valid.tsv", lines(30));
  options.tokenization = app::Tokenization::kWord;
  options.letters = app::LetterCase::kLower;
  options.max_length = 5;
  const TranslationData want = data_of(options);
  EXPECT_EQ(want.train.facts.pairs + want.train.facts.left_out, 2500);
  EXPECT_GT(want.train.facts.left_out, 300);
  EXPECT_GT(want.train.facts.pairs, 1000);
  EXPECT_EQ(std::ssize(want.train.source), want.train.facts.pairs);
  for (const int threads : {2, 3}) {
    options.executor = Executor::threads(threads);
    const TranslationData got = data_of(options);
    EXPECT_EQ(got.train.source, want.train.source);
    EXPECT_EQ(got.train.target, want.train.target);
    EXPECT_EQ(got.valid.source, want.valid.source);
    EXPECT_EQ(got.valid.target, want.valid.target);
    EXPECT_TRUE(std::ranges::equal(got.source.tokens(), want.source.tokens()));
    EXPECT_TRUE(std::ranges::equal(got.target.tokens(), want.target.tokens()));
    EXPECT_EQ(got.style, want.style);
    EXPECT_EQ(got.train.facts.hash, want.train.facts.hash);
    EXPECT_EQ(got.train.facts.left_out, want.train.facts.left_out);
  }
  // Each sentence pair has the text of its own line. The lines checked are at the ends of blocks.
  options.executor = {};
  options.max_length = 100;
  const TranslationData all = data_of(options);
  EXPECT_EQ(all.train.facts.left_out, 0);
  for (const Index n : {0, 1023, 1024, 2047, 2048, 2499}) {
    const app::Example example = app::reverse_example(1, n);
    EXPECT_EQ(all.train.source[static_cast<std::size_t>(n)],
              all.source.encode(all.tokenizer.split(example.source)));
  }
}

TEST(TranslationData, TheFirstLineThatIsWrongIsNamed) {
  const test::Directory directory;
  app::TrainingOptions options;
  options.tokenization = app::Tokenization::kWord;
  options.data = directory.write("train.tsv", lines(1500) + "a\t \n" + lines(2000) + " \tb\n");
  for (const int threads : {1, 3}) {
    options.executor = Executor::threads(threads);
    const std::string text = test::complaint<app::InputError>([&] { data_of(options); });
    EXPECT_NE(text.find("1501"), text.npos) << text;
    EXPECT_NE(text.find("expected text in column"), text.npos) << text;
  }
}

}  // namespace
}  // namespace qkv::app
