// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/file_error.h>
#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using Ids = std::vector<std::int32_t>;
using Texts = std::vector<std::string>;
using Counts = std::vector<CountedToken>;

Vocabulary vocabulary_of(const Texts& tokens, Index min_count = 1, Index most = 0) {
  VocabularyBuilder builder;
  builder.add(tokens);
  return builder.build(min_count, most);
}

Counts counts_of(const Vocabulary& vocabulary) {
  return {vocabulary.tokens().begin(), vocabulary.tokens().end()};
}

TEST(Vocabulary, IsSortedByFallingCountThenByBytes) {
  VocabularyBuilder builder;
  builder.add(Texts{"b", "\xC3\xA9", "a", "b", "Z"});
  builder.add(Texts{"b", "c", "c"});
  const Vocabulary vocabulary = builder.build();
  EXPECT_EQ(counts_of(vocabulary),
            (Counts{{"b", 3}, {"c", 2}, {"Z", 1}, {"a", 1}, {"\xC3\xA9", 1}}));
  EXPECT_EQ(vocabulary.size(), 9);
  EXPECT_EQ(vocabulary.token(4), "b");
  EXPECT_EQ(vocabulary.token(8), "\xC3\xA9");
}

TEST(Vocabulary, KeepsWhatIsCommonEnough) {
  const Texts text{"a", "a", "a", "b", "b", "c", "c", "d"};
  EXPECT_EQ(counts_of(vocabulary_of(text, 2)), (Counts{{"a", 3}, {"b", 2}, {"c", 2}}));
  EXPECT_EQ(counts_of(vocabulary_of(text, 0, 2)), (Counts{{"a", 3}, {"b", 2}}));
  EXPECT_EQ(counts_of(vocabulary_of(text, 3, 2)), (Counts{{"a", 3}}));
  EXPECT_EQ(vocabulary_of(text, 4).size(), Vocabulary::kSpecials);
}

TEST(Vocabulary, SpecialTokensComeFirst) {
  const Vocabulary none;
  EXPECT_EQ(none.size(), 4);
  EXPECT_EQ(none.token(Vocabulary::kPadding), "<pad>");
  EXPECT_EQ(none.token(Vocabulary::kStart), "<s>");
  EXPECT_EQ(none.token(Vocabulary::kEnd), "</s>");
  EXPECT_EQ(none.token(Vocabulary::kUnknown), "<unk>");
  EXPECT_THROW(none.token(4), Error);
  EXPECT_THROW(none.token(-1), Error);
}

TEST(Vocabulary, EncodingAppendsTheEndToken) {
  const Vocabulary vocabulary = vocabulary_of({"a", "a", "b"});
  EXPECT_EQ(vocabulary.encode(Texts{"b", "x", "a"}), (Ids{5, Vocabulary::kUnknown, 4, 2}));
  EXPECT_EQ(vocabulary.encode(Texts{}), Ids{Vocabulary::kEnd});
}

TEST(Vocabulary, DecodingStopsAtTheFirstEndToken) {
  const Vocabulary vocabulary = vocabulary_of({"a", "a", "b"});
  EXPECT_EQ(vocabulary.decode(Ids{5, 3, 4, 2, 4, 99}), (Texts{"b", "<unk>", "a"}));
  EXPECT_EQ(vocabulary.decode(Ids{4}), Texts{"a"});
  EXPECT_EQ(vocabulary.decode(Ids{2}), Texts{});
  EXPECT_THROW(vocabulary.decode(Ids{6}), Error);
  const Texts text{"b", "a", "b"};
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(text)), text);
}

// A token "</s>" in a text must not end it, and "<pad>" must not be padding.
TEST(Vocabulary, TextIsNeverSpecial) {
  const Texts text{"</s>", "</s>", "<pad>", "<unk>"};
  const Vocabulary vocabulary = vocabulary_of(text);
  EXPECT_EQ(vocabulary.encode(text), (Ids{4, 4, 5, 6, 2}));
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(text)), text);
  EXPECT_EQ(Vocabulary().encode(text), (Ids{3, 3, 3, 3, 2}));
}

TEST(Vocabulary, RefusesInvalidTokensAndCounts) {
  for (const Counts& tokens :
       {Counts{{"", 1}}, Counts{{"\xFF", 1}}, Counts{{"a", 0}}, Counts{{"a", 1}, {"b", 2}},
        Counts{{"b", 1}, {"a", 1}}, Counts{{"a", 2}, {"b", 2}, {"a", 1}}}) {
    EXPECT_THROW(Vocabulary{tokens}, Error) << tokens[0].text;
  }
  EXPECT_EQ(complaint<Error>([] {
              Vocabulary({{"a", 2}, {"b", 2}, {"a", 1}});
            }),
            "Vocabulary: tokens must differ, got \"a\" twice");
  EXPECT_THROW(VocabularyBuilder().build(-1), Error);
  EXPECT_THROW(VocabularyBuilder().build(1, -1), Error);
}

TEST(VocabularyFile, ComesBack) {
  const Directory directory;
  const std::string path = directory / "v.json";
  const Vocabulary vocabulary = vocabulary_of({"\"", "\\", " ", "\n", "\xC3\xA9", "</s>", "\""});
  write_vocabulary(path, vocabulary);
  EXPECT_EQ(counts_of(read_vocabulary(path)), counts_of(vocabulary));
  write_vocabulary(path, Vocabulary());
  EXPECT_EQ(read_vocabulary(path).size(), 4);
}

TEST(VocabularyFile, HasATokenOnEachLine) {
  const Directory directory;
  write_vocabulary(directory / "v.json", vocabulary_of({"e", "e", "\"", "\xC3\xA9"}));
  EXPECT_EQ(test::read(directory / "v.json"),
            "{\"tokens\": [\n[\"e\", 2],\n[\"\\\"\", 1],\n[\"\xC3\xA9\", 1]\n]}\n");
}

TEST(VocabularyFile, RefusalsSayWhatIsWrong) {
  const Directory directory;
  const auto refusal = [&](std::string_view bytes) {
    const std::string path = directory.write("v.json", bytes);
    const std::string text = complaint<InputError>([&] { read_vocabulary(path); });
    const auto name = text.find("v.json:");
    return name == text.npos ? text : text.substr(name);
  };
  EXPECT_EQ(refusal(""), "v.json:1: expected JSON, got the end");
  EXPECT_EQ(refusal("{\"tokens\": [\n[\"a\", 1],\n[\"b\" 1]]}"),
            "v.json:3: expected JSON, got \"1]]}\"");
  EXPECT_EQ(refusal(std::string_view("{}\0", 3)), "v.json:1: expected JSON, got \"\\x00\"");
  for (const char* other : {"[]", "{}", "{\"tokens\": 1}", "{\"tokens\": [], \"more\": 1}"}) {
    EXPECT_EQ(refusal(other), "v.json: expected a vocabulary, {\"tokens\": [...]}, got other JSON");
  }
  EXPECT_EQ(refusal("{\"tokens\": [],\n\"tokens\": []}"),
            "v.json:2: expected distinct names, got \"tokens\" twice");
  EXPECT_EQ(refusal("{\"tokens\": [[\"a\", 2], [\"b\"]]}"),
            "v.json: token 2: expected [text, count], got \"[\"b\"]\"");
  for (const char* token : {"[1, 1]", "[\"a\", -1]", "[\"a\", 1.5]", "[\"a\", 9223372036854775808]",
                            "\"a\"", "[\"a\", 1, 1]"}) {
    EXPECT_EQ(refusal("{\"tokens\": [" + std::string(token) + "]}").substr(0, 16),
              "v.json: token 1:")
        << token;
  }
  EXPECT_EQ(refusal("{\"tokens\": [[\"a\", 1e999]]}"),
            "v.json:1: expected JSON, got a number out of range");
  EXPECT_EQ(refusal("{\"tokens\": [[\"b\", 1], [\"a\", 1]]}"),
            "v.json: Vocabulary: tokens must be sorted by descending count, then by bytes: "
            "got \"b\" (1) before \"a\" (1)");
  EXPECT_EQ(refusal(std::string(100000, '[')), "v.json:1: expected a vocabulary, got deeper JSON");
  EXPECT_EQ(complaint<InputError>([&] {
              read_vocabulary(directory / "none");
            }).find("No such file") != std::string::npos,
            true);
}

TEST(VocabularyFile, DamagedFilesAreReadOrRefused) {
  const Directory directory;
  write_vocabulary(directory / "v.json", vocabulary_of({"e", "e", "\"", "\xC3\xA9"}));
  const std::string whole = test::read(directory / "v.json");
  EXPECT_EQ(test::read_though_cut<InputError>(
                directory, whole, [](const std::string& path) { read_vocabulary(path); }),
            1U);  // the file without its last line end
}

TEST(Vocabulary, MayBeUncounted) {
  const Vocabulary pieces = Vocabulary::uncounted({"b", "a", "<s>"});
  EXPECT_EQ(counts_of(pieces), (Counts{{"b", 0}, {"a", 0}, {"<s>", 0}}));
  EXPECT_EQ(pieces.encode(Texts{"a", "<s>", "c"}), (Ids{5, 6, 3, 2}));
  EXPECT_THROW(Vocabulary::uncounted({"a", "a"}), Error);
  EXPECT_THROW(Vocabulary::uncounted({""}), Error);
  EXPECT_THROW(Vocabulary::uncounted({"\xFF"}), Error);
}

}  // namespace
}  // namespace qkv::app
