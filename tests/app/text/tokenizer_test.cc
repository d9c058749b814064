// SPDX-License-Identifier: Apache-2.0
// Tests of tokenizers of characters and words; subwords_test.cc tests subwords.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/tokenizer.h>
#include <qkv/error.h>

namespace qkv::app {
namespace {

using Texts = std::vector<std::string>;

const Tokenizer kCharacters;
const Tokenizer kWords{Words{}};

TEST(Tokenizer, CharactersComeBackAsTheyWere) {
  for (const char* text :
       {"", "May 3,  1987 ", "cafe\u0301", "\u00A0\u3000", "👩‍👩‍👧🇫🇷x"}) {
    EXPECT_EQ(kCharacters.join(kCharacters.split(text)), text);
  }
  EXPECT_EQ(kCharacters.split("e\u0301 a"), (Texts{"e\u0301", " ", "a"}));
}

TEST(Tokenizer, WordsAreSpacedAsInText) {
  const Texts tokens = kWords.split("Ça  va?");
  EXPECT_EQ(tokens, (Texts{"Ça", "va", "?"}));
  EXPECT_EQ(kWords.join(tokens), "Ça va?");
  EXPECT_EQ(kWords.join(Texts{}), "");
}

TEST(Tokenizer, CurlyQuotesBecomeStraight) {
  EXPECT_EQ(kWords.split("“It’s” „so‟ ‘x′"), kWords.split("\"It's\" \"so\" 'x'"));
  EXPECT_EQ(kCharacters.split("’"), Texts{"'"});
  EXPECT_EQ(kCharacters.split("«"), Texts{"«"});
}

TEST(Tokenizer, LettersMayBeLowered) {
  EXPECT_EQ(Tokenizer(Characters{}, LetterCase::kLower).split("ÇA"), (Texts{"ç", "a"}));
  EXPECT_EQ(Tokenizer(Words{}, LetterCase::kLower).split("ÇA va"), (Texts{"ça", "va"}));
  EXPECT_THROW(kCharacters.split("\xFF"), Error);
  EXPECT_THROW(kWords.split("\xFF"), Error);
}

TEST(Tokenizer, TokensMayKeepTheirCapitals) {
  const Tokenizer lower(Words{}, LetterCase::kLower);
  EXPECT_EQ(lower.split_as_typed("“Ça” VA"), (Texts{"\"", "Ça", "\"", "VA"}));
  EXPECT_EQ(kWords.split_as_typed("Ça VA"), kWords.split("Ça VA"));
}

TEST(Tokenizer, SaysWhatItSplitsInto) {
  EXPECT_EQ(kCharacters.tokenization(), Tokenization::kCharacter);
  EXPECT_EQ(kWords.tokenization(), Tokenization::kWord);
}

}  // namespace
}  // namespace qkv::app
