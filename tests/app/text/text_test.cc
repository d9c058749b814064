// SPDX-License-Identifier: Apache-2.0
#include "text/text.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "text/numbers.h"
#include "text/spelling.h"

namespace qkv::app {
namespace {

using Texts = std::vector<std::string>;

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append_utf8(text, c);
    std::size_t at = 0;
    ASSERT_EQ(next_code_point(text, at), c);
    ASSERT_EQ(at, text.size());
  }
}

TEST(Utf8, RefusesInvalidBytes) {
  for (const std::string text :
       {"\x80", "\xC3", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xFF", "\xE2\x82", "\xC3\x28"}) {
    std::size_t at = 0;
    EXPECT_FALSE(next_code_point(text, at)) << quoted(text);
    EXPECT_EQ(at, 0U);
    EXPECT_FALSE(from_utf8("a" + text)) << quoted(text);
    EXPECT_EQ(utf8_prefix("\u00E9" + text + "a"), 2U) << quoted(text);
  }
  EXPECT_EQ(utf8_prefix("a\u00E9"), 3U);
  std::size_t end = 1;
  EXPECT_FALSE(next_code_point("a", end));
}

TEST(Utf8, QuotedShowsNothingThatMovesACursor) {
  EXPECT_EQ(quoted("caf\xC3\xA9"), "\"caf\xC3\xA9\"");
  EXPECT_EQ(quoted("a\x1b[1m\xFF\n"), "\"a\\x1b[1m\\xff\\x0a\"");
  EXPECT_EQ(quoted("a\u202Eb\u00ADc\uFEFF"), "\"a\\u202eb\\xadc\\ufeff\"");
  EXPECT_EQ(quoted("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(quoted("abc", 3), "\"abc\"");
  EXPECT_EQ(quoted(""), "\"\"");
}

TEST(Text, CutsAtWhiteSpaceAndSetsPunctuationApart) {
  EXPECT_EQ(tokenize("the cat  sat\ton\nthe mat."),
            (Texts{"the", "cat", "sat", "on", "the", "mat", "."}));
  EXPECT_EQ(tokenize("(It's 3.14...) state-of-the-art -- no!?"),
            (Texts{"(", "It's", "3.14", "...", ")", "state-of-the-art", "--", "no", "!", "?"}));
  EXPECT_EQ(tokenize("«\u00A0Déjà\u00A0vu\u3000»"), (Texts{"«", "Déjà", "vu", "»"}));
  EXPECT_EQ(tokenize("cafe\u0301, x"), (Texts{"cafe\u0301", ",", "x"}));
  EXPECT_EQ(tokenize("a\x1b[2Jb"), (Texts{"a", "[", "2Jb"}));
  EXPECT_EQ(tokenize(" \t\r\n"), Texts{});
  EXPECT_EQ(tokenize(""), Texts{});
  EXPECT_THROW(tokenize("a\xFF"), Error);
}

TEST(Text, LowersLettersOnly) {
  EXPECT_EQ(lower_case("The ÉCOLE ЖУК 3"), "the école жук 3");
  EXPECT_THROW(lower_case("\xC3"), Error);
}

TEST(Text, WidthIsThatOfATerminal) {
  EXPECT_EQ(display_width("cat"), 3);
  EXPECT_EQ(display_width("cafe\u0301"), 4);
  EXPECT_EQ(display_width("中文"), 4);
  EXPECT_EQ(shortened("street", 6), "street");
  EXPECT_EQ(shortened("street", 4), "str…");
  EXPECT_EQ(shortened("中文字", 4), "中…");
  EXPECT_EQ(shortened("street", 0), "");
}

TEST(Text, WidthIsThatOfWholeCharacters) {
  EXPECT_EQ(display_width("😀"), 2);
  EXPECT_EQ(display_width("👨‍👩‍👧‍👦"), 2);  // four joined by U+200D
  EXPECT_EQ(display_width("👍🏽"), 2);                       // with a skin tone
  EXPECT_EQ(display_width("🇩🇪🇫🇷"), 4);                       // two flags
  EXPECT_EQ(display_width("\u2764"), 1);                     // a heart
  EXPECT_EQ(display_width("\u2764\uFE0F"), 2);
  EXPECT_EQ(display_width("1\uFE0F\u20E3"), 2);
  EXPECT_EQ(display_width("a\uFE0F"), 1);
  EXPECT_EQ(display_width("한"), 2);
  EXPECT_EQ(display_width("مرحبا"), 5);
  EXPECT_EQ(display_width("\u0301"), 0);
  EXPECT_EQ(shortened("👨‍👩‍👧‍👦👍🏽x", 3), "👨‍👩‍👧‍👦…");
  EXPECT_EQ(shortened("cafe\u0301 au lait", 5), "cafe\u0301…");
}

TEST(Text, PrintableShowsNothingThatMovesACursor) {
  EXPECT_EQ(printable("\t"), "⇥");
  EXPECT_EQ(printable("a\x1b[1m\n\x7F"), "a\uFFFD[1m↵\uFFFD");
  EXPECT_EQ(printable("\xFF\xC2\x9B\xEF\xBF\xBF"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(printable("\u202Eabc\u2066\uFEFF"), "abc");
  EXPECT_EQ(printable("👨‍👩‍👧 é"), "👨‍👩‍👧 é");
  EXPECT_EQ(shortened("\x1b[2J", 9), "\uFFFD[2J");
  EXPECT_EQ(display_width("\x1b\n"), 2);
}

TEST(Text, IsBlankWithoutAnythingToSee) {
  for (const char* text : {"", " \t\n", "\u3000", "\u200B", "\u200C\u200D", "\uFEFF",
                           "\u2060 \u00AD", "\uFE0F\u034F", "\u202E\u2066", "\x1B", "\U000E0001"}) {
    EXPECT_TRUE(is_blank(text)) << quoted(text);
    EXPECT_TRUE(tokenize(text).empty()) << quoted(text);
  }
  for (const char* text : {"a", "\u200Ba", "👩\u200D", ".", "\u0301", "\uFFFD", "\uE000"}) {
    EXPECT_FALSE(is_blank(text)) << quoted(text);
    EXPECT_FALSE(tokenize(text).empty()) << quoted(text);
  }
  EXPECT_THROW(is_blank("\xFF"), Error);
}

TEST(Text, KnowsRightToLeftText) {
  EXPECT_TRUE(has_right_to_left("a مرحبا"));
  EXPECT_TRUE(has_right_to_left("שלום"));
  EXPECT_FALSE(has_right_to_left("cat 12 中文 😀"));
}

TEST(Text, JoinedEmojiAreOneToken) {
  EXPECT_EQ(tokenize("hi 👨‍👩‍👧! ❤️."),
            (Texts{"hi", "👨‍👩‍👧", "!", "❤️", "."}));
}

TEST(Numbers, AreReadWhole) {
  EXPECT_EQ(parse_number<double>("-1.5e2"), -150.0);
  EXPECT_EQ(parse_number<int>("12"), 12);
  for (const char* text : {"", " 1", "1 ", "12x", "+1", "nan", "inf", "1e999", "0x10", "--1"}) {
    EXPECT_FALSE(parse_number<double>(text)) << text;
  }
  for (const char* text : {"", "1.0", "12x", "99999999999", "-"}) {
    EXPECT_FALSE(parse_number<int>(text)) << text;
  }
  EXPECT_FALSE(parse_number<std::uint64_t>("-1"));
}

double dot(const Tensor& x, Index a, Index b) {
  double sum = 0;
  for (Index c = 0; c < x.size(1); ++c) {
    sum += static_cast<double>(x.view().at<float>({a, c})) *
           static_cast<double>(x.view().at<float>({b, c}));
  }
  return sum;
}

double cosine(const Tensor& x, Index a, Index b) {
  return dot(x, a, b) / std::sqrt(dot(x, a, a) * dot(x, b, b));
}

TEST(Spelling, SameWordSameVectorWhereverItStands) {
  const Tensor a = spelling_vectors(Texts{"the", "cat", "the"}, 7);
  const Tensor b = spelling_vectors(Texts{"cat"}, 7);
  ASSERT_EQ(a.shape(), Dims(3, 50));
  for (Index c = 0; c < 50; ++c) {
    EXPECT_EQ(a.view().at<float>({0, c}), a.view().at<float>({2, c}));
    EXPECT_EQ(a.view().at<float>({1, c}), b.view().at<float>({0, c}));
  }
}

TEST(Spelling, SeedAndSpellingChangeTheVector) {
  EXPECT_LT(std::abs(cosine(spelling_vectors(Texts{"street", "banjo"}, 0), 0, 1)), 0.5);
  const Tensor a = spelling_vectors(Texts{"cat"}, 1);
  const Tensor b = spelling_vectors(Texts{"cat"}, 2);
  EXPECT_NE(a.view().at<float>({0, 0}), b.view().at<float>({0, 0}));
}

TEST(Spelling, WordsThatShareLettersAreNear) {
  const Tensor x = spelling_vectors(Texts{"walking", "walked", "street"}, 0);
  EXPECT_GT(cosine(x, 0, 1), 0.25);
  EXPECT_GT(cosine(x, 0, 1), cosine(x, 0, 2) + 0.1);
}

// The standard deviation is 0.634, as in GloVe's vectors, for words of any length, since the
// vectors of a word's n-grams are independent.
TEST(Spelling, DeviationIsThatOfGloVe) {
  for (const std::size_t length : {1U, 4U, 30U}) {
    Texts words;
    for (char c = 'a'; c <= 'z'; ++c) {
      std::string word;
      for (std::size_t i = 0; i < length; ++i) {
        word += static_cast<char>('a' + (static_cast<std::size_t>(c - 'a') * 7 + i * i * 5) % 26);
      }
      words.push_back(word);
    }
    const Tensor x = spelling_vectors(words, 3, 200);
    double squares = 0;
    for (const float value : x.values<float>()) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(x.element_count())), 0.634, 0.04) << length;
  }
}

// The expected numbers, which must be bit-identical, come from spelling_vector() in words_test.py,
// which follows the description in spelling.h.
TEST(Spelling, FirstNumbersArePinned) {
  const Tensor x = spelling_vectors(Texts{"a"}, 0, 4);
  const float want[] = {0x1.cb7a4ap-2F, 0x1.d064a2p-2F, -0x1.b059e2p-1F, -0x1.e0c51cp-1F};
  for (Index c = 0; c < 4; ++c) EXPECT_EQ(x.view().at<float>({0, c}), want[c]) << c;
}

TEST(Spelling, RefusesInvalidArguments) {
  EXPECT_THROW(spelling_vectors(Texts{"\xFF"}, 0), Error);
  EXPECT_THROW(spelling_vectors(Texts{"a"}, 0, 0), Error);
  EXPECT_EQ(spelling_vectors(Texts{}, 0).shape(), Dims(0, 50));
}

}  // namespace
}  // namespace qkv::app
