// SPDX-License-Identifier: Apache-2.0
// Tests of how tokens become text: spaces and capitals.
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/text_style.h>
#include <qkv/app/tokenizer.h>
#include <qkv/error.h>

#include "tests/app/files/data_file.h"
#include "tests/app/files/files.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using Texts = std::vector<std::string>;

TextStyle learned(const Texts& texts, LetterCase letters = LetterCase::kKept) {
  TextStyleBuilder builder(Tokenization::kWord, letters);
  for (const std::string& text : texts) builder.add(text);
  return builder.build();
}

std::string again(std::string_view text, const TextStyle& style = {}) {
  return Tokenizer(Words{}).join(Tokenizer(Words{}).split(text), style);
}

// Builders that learned from parts of a text may be added in any order.
TEST(TextStyle, BuildersAddUp) {
  const Texts texts{"« Tom » est là !", "Paris ! Paris !", "il aime Paris, Tom aussi",
                    "non: tom ?",       "Oui (à Paris) .", "à Rome, à Rome"};
  for (const LetterCase letters : {LetterCase::kKept, LetterCase::kLower}) {
    const TextStyle want = learned(texts, letters);
    EXPECT_FALSE(want.spaces.empty());
    for (std::size_t cut = 0; cut <= texts.size(); ++cut) {
      TextStyleBuilder parts[] = {{Tokenization::kWord, letters}, {Tokenization::kWord, letters}};
      for (std::size_t n = 0; n < texts.size(); ++n) parts[n < cut ? 0 : 1].add(texts[n]);
      for (const int first : {0, 1}) {
        TextStyleBuilder whole = parts[first];
        whole.add(parts[1 - first]);
        EXPECT_EQ(whole.build(), want) << cut << " " << first;
      }
    }
  }
  EXPECT_FALSE(learned(texts, LetterCase::kLower).words.empty());
  EXPECT_EQ(learned(texts, LetterCase::kLower).sentences, SentenceStart::kCapital);
}

TEST(TextStyle, WithoutTrainingSpacesAreEnglish) {
  for (const char* text : {"Hi, Tom!", "(It's 3.14...) so: yes; no?", "\"Well\", he said, \"go.\"",
                           "a - b", "it costs $5, or 5%", "two weeks' time", "¿Qué?", "x"}) {
    EXPECT_EQ(again(text), text);
  }
}

TEST(TextStyle, SpacesAreLearned) {
  const TextStyle french =
      learned({"Ça va ?", "Non !", "« Oui », dit-il.", "Oui, bien ; non : si."});
  for (const char* text : {"Où est « Paris » ?", "Viens !", "Oui, si ; ou : non."}) {
    EXPECT_EQ(again(text, french), text);
  }
  EXPECT_EQ(again("Ça va ?"), "Ça va?") << "without the style";
  EXPECT_EQ(learned({"Hi, Tom!", "(Yes.)"}), TextStyle{}) << "English is not stored";
}

TEST(TextStyle, CapitalsAreLearned) {
  const TextStyle style = learned(
      {"I saw Tom in Paris.", "He and I left. Then Tom came.", "The U.S. and the NASA of the US"},
      LetterCase::kLower);
  const auto written = [&](const Texts& words) {
    return Tokenizer(Words{}).join(with_capitals(words, style), style);
  };
  EXPECT_EQ(written({"he", "and", "i", "saw", "tom", "."}), "He and I saw Tom.");
  EXPECT_EQ(written({"then", "!", "nasa", "came", "."}), "Then! NASA came.");
  EXPECT_EQ(with_capitals("tom and i\tcame.", style), "Tom and I\tcame.");
  const TextStyle small = learned({"tom went", "he and tom"}, LetterCase::kLower);
  EXPECT_EQ(small, TextStyle{});
}

TEST(TextStyle, SpacesOfAnyKindAreAlike) {
  EXPECT_EQ(learned({"va\u202F? a", "va\u00A0? a"}).spaces.at("?"), Spaces::kBoth);
}

TEST(TextStyle, SentencesStartAsTheyDid) {
  EXPECT_EQ(learned({"one", "two. three"}, LetterCase::kLower).sentences, SentenceStart::kKept);
  EXPECT_EQ(learned({"1987-05-03", "猫"}, LetterCase::kLower), TextStyle{});  // neither has case
  EXPECT_THROW(learned({"\xFF"}), Error);
}

TEST(TextStyle, CapitalsComeBack) {
  const TextStyle style{
      .spaces = {}, .words = {{"tom", "Tom"}}, .sentences = SentenceStart::kCapital};
  EXPECT_EQ(with_capitals("\"éa tom,\"  b... c? 5 d! e … f", style),
            "\"Éa Tom,\"  b... c? 5 d! E … F");
  EXPECT_EQ(with_capitals(Texts{"(", "a", ".", "b", ")"}, style), (Texts{"(", "A", ".", "B", ")"}));
  EXPECT_EQ(with_capitals(Texts{"<unk>", "a"}, style), (Texts{"<unk>", "a"}));
  EXPECT_EQ(with_capitals("a. tom", TextStyle{}), "a. tom");
  EXPECT_EQ(with_capitals("", style), "");
}

// Sentences of the corpus that `shared/data/SOURCES.md` describes come back when their tokens are
// joined again, except for at most 1.5 %.
TEST(TextStyle, RealSentencesComeBack) {
  const std::string path = test::data_file("tatoeba-eng-fra.tsv");
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << "no " << path << " (set QKV_DATA_DIR)";
  Texts lines[2];
  std::string line;
  for (int n = 0; std::getline(file, line); ++n) {
    const std::size_t tab = line.find('\t');
    if (n % 20 != 0 || tab == line.npos) continue;
    lines[0].push_back(line.substr(0, tab));
    lines[1].push_back(line.substr(tab + 1));
  }
  for (const Texts& texts : lines) {
    const TextStyle style = learned(texts);
    std::size_t same = 0;
    for (const std::string& text : texts) {
      // White space of any kind and width comes back as one blank.
      std::string expected;
      const std::string straight = straight_quotes(text);
      const std::string_view* before = nullptr;
      const std::vector<std::string_view> tokens = token_views(straight);
      for (const std::string_view& token : tokens) {
        if (before != nullptr && before->data() + before->size() != token.data()) expected += ' ';
        expected += token;
        before = &token;
      }
      if (again(text, style) == expected) ++same;
    }
    const double share = static_cast<double>(same) / static_cast<double>(texts.size());
    RecordProperty("share", std::to_string(share));
    EXPECT_GT(share, 0.985) << texts[0];
    std::printf("%.2f %% of %zu lines\n", 100 * share, texts.size());
  }
}

}  // namespace
}  // namespace qkv::app
