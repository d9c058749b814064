// SPDX-License-Identifier: Apache-2.0
// Tests of files of word vectors: the binary format, reports of progress, and check_word_vectors().
#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/app/word_vectors.h>
#include <qkv/error.h>

#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using Texts = std::vector<std::string>;
using Floats = std::vector<float>;

std::string bytes_of(const Floats& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

// The bytes of a file in word2vec's binary form.
std::string binary(const std::string& header,
                   const std::vector<std::pair<std::string, Floats>>& words,
                   const std::string& end = "\n") {
  std::string bytes = header + "\n";
  for (const auto& [word, numbers] : words) bytes += word + " " + bytes_of(numbers) + end;
  return bytes;
}

WordVectors read(std::string_view bytes, const Texts& words,
                 const WordVectorOptions& options = {}) {
  const Directory directory;
  std::vector<Spellings> wanted;
  for (const std::string& word : words) wanted.push_back({word});
  return read_word_vectors(directory.write("v", bytes), wanted, options);
}

VectorFileSummary check(std::string_view bytes, const WordVectorOptions& options = {}) {
  const Directory directory;
  return check_word_vectors(directory.write("v", bytes), options);
}

// The error message of a call, without the directory.
template <class Call>
std::string refusal(Call&& call) {
  const std::string text = complaint<InputError>(call);
  const std::size_t name = text.find("/v:");
  return name == std::string::npos ? text : text.substr(name + 1);
}
std::string read_refusal(std::string_view bytes, const WordVectorOptions& options = {}) {
  return refusal([&] { read(bytes, {"cat", "none"}, options); });
}
std::string check_refusal(std::string_view bytes, const WordVectorOptions& options = {}) {
  return refusal([&] { check(bytes, options); });
}

Floats vector_of(const WordVectors& vectors, std::size_t word) {
  Floats values;
  for (Index c = 0; c < vectors.vectors.size(1); ++c) {
    values.push_back(vectors.vectors.view().at<float>({vectors.words[word].row, c}));
  }
  return values;
}

TEST(BinaryVectors, AreFoundByContent) {
  for (const std::string end : {"\n", ""}) {
    const std::string bytes =
        binary("3 2", {{"the", {0.1F, 0.2F}}, {"cat", {-3, 4e-20F}}, {"mat", {5, 6}}}, end);
    const auto found = read(bytes, {"mat", "the", "dog", "cat"});
    EXPECT_EQ(found.vectors.shape(), Dims(3, 2));
    EXPECT_EQ(vector_of(found, 0), (Floats{5, 6}));
    EXPECT_EQ(vector_of(found, 1), (Floats{0.1F, 0.2F}));
    EXPECT_EQ(found.words[2].row, -1);
    EXPECT_EQ(vector_of(found, 3), (Floats{-3, 4e-20F}));
  }
}

// Numbers may contain the bytes of blanks and newlines.
TEST(BinaryVectors, NumbersMayLookLikeText) {
  const Floats numbers = {std::bit_cast<float>(0x0A0A0A0A), std::bit_cast<float>(0x20200A20)};
  const auto found = read(binary("2 2", {{"the", {1, 2}}, {"cat", numbers}}), {"cat"});
  EXPECT_EQ(vector_of(found, 0), numbers);
}

TEST(BinaryVectors, HaveNearSpellingsAndTheFirstOfEqualWordsCounts) {
  const auto found =
      read(binary("4 1", {{"walk", {1}}, {"walk", {2}}, {"sea", {3}}, {"\xFFx", {4}}}),
           {"walk", "walks"});
  EXPECT_EQ(vector_of(found, 0), Floats{1});
  EXPECT_EQ(found.words[1].near, Texts{"walk"});
}

TEST(BinaryVectors, WordsMayCrossBlocks) {
  std::vector<std::pair<std::string, Floats>> words;
  Texts names;
  for (int i = 0; i < 30000; ++i) {
    names.push_back("w" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 61), 'x'));
    words.push_back({names.back(), Floats(40, static_cast<float>(i) + 0.5F)});
  }
  const auto found = read(binary("30000 40", words), names, {.near = 0});
  for (std::size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(vector_of(found, i), words[i].second) << names[i];
  }
}

TEST(BinaryVectors, RefusalsNameTheByte) {
  const std::string good = binary("2 2", {{"the", {1, 2}}, {"dog", {3, 4}}});
  EXPECT_EQ(read_refusal(good), "no exception");
  for (const auto& refuse : {read_refusal, check_refusal}) {
    EXPECT_EQ(
        refuse(good.substr(0, good.size() - 2), {}),
        "v: byte 21: the file is truncated: expected 8 bytes of numbers after \"dog\", got 7");
    EXPECT_EQ(refuse(good + "x", {}), "v: byte 29: expected the end after word 2, got \"\\x0ax\"");
    EXPECT_EQ(refuse(good, {.width = 3}),
              "v: byte 0: expected vectors of width 3, got a header that says 2");
    EXPECT_EQ(refuse(binary("9 2", {{"the", {1, 2}}}), {}),
              "v: byte 0: the file is truncated: expected at least 90 bytes of 9 words (width 2), "
              "got 13");
    EXPECT_EQ(refuse(binary("9223372036854775807 2", {{"the", {1, 2}}}), {}),
              "v: byte 0: expected a word count of at most 1 (width 2) in 35 bytes, got "
              "9223372036854775807");
    EXPECT_EQ(refuse(binary("1 9999999", {{"the", {1, 2}}}), {}),
              "v: byte 0: expected a count and a width of 1 to 131072, got \"1 9999999\"");
    EXPECT_EQ(refuse(binary("2 1", {{"the", {1}}, {"", {2}}, {"x", {1}}}), {}),
              "v: byte 12: expected word 2 of 2 and a space, got \"\\x0a \\x00\\x00\\x00@\\x0ax "
              "\\x00\\x00\\x80?\\x0a\"");
  }
  EXPECT_EQ(read_refusal(binary("1 2", {{"cat", {1, std::numeric_limits<float>::infinity()}}})),
            "v: byte 12: expected finite numbers after \"cat\", got inf as number 2");
}

TEST(VectorProgress, IsReportedPerBlock) {
  std::string bytes;
  for (int i = 0; i < 400000; ++i) bytes += "w" + std::to_string(i) + " 1 2\n";
  std::vector<Index> reported;
  const Index size = static_cast<Index>(bytes.size());
  const auto progress = [&](Index done, Index total) {
    EXPECT_EQ(total, size);
    EXPECT_LE(done, total);
    reported.push_back(done);
  };
  read(bytes, {"none"}, {.near = 0, .progress = progress});
  ASSERT_FALSE(reported.empty());
  EXPECT_EQ(reported.back(), size);
  EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
  EXPECT_LE(static_cast<Index>(reported.size()), size / (1 << 20) + 2);
  reported.clear();
  check(bytes, {.progress = progress});
  EXPECT_EQ(reported.back(), size);
}

TEST(CheckWordVectors, SumsTextUp) {
  const auto sum = check("the 1 2\nof a 3 -4.5\nthe 0 1e3\n\xFF 0 0\n\n");
  EXPECT_EQ(sum.format, VectorFormat::kText);
  EXPECT_EQ(sum.count, 4);
  EXPECT_EQ(sum.width, 2);
  EXPECT_EQ(sum.words_with_blanks, 1);
  EXPECT_EQ(sum.words_not_utf8, 1);
  EXPECT_EQ(sum.repeated, 1);
  EXPECT_EQ(sum.first_words, (Texts{"the", "of a", "the", "\xFF"}));
  EXPECT_EQ(sum.smallest, -4.5F);
  EXPECT_EQ(sum.largest, 1000);
}

TEST(CheckWordVectors, KnowsTextWithAHeaderAndBinary) {
  const auto header = check("2 1\nthe 5\ncat 7\n");
  EXPECT_EQ(header.format, VectorFormat::kTextWithHeader);
  EXPECT_EQ(header.count, 2);
  EXPECT_EQ(header.smallest, 5);
  const auto sum = check(binary("2 2", {{"the", {5, -1}}, {"the", {7, 8}}}));
  EXPECT_EQ(sum.format, VectorFormat::kBinary);
  EXPECT_EQ(sum.count, 2);
  EXPECT_EQ(sum.width, 2);
  EXPECT_EQ(sum.repeated, 1);
  EXPECT_EQ(sum.smallest, -1);
  EXPECT_EQ(sum.largest, 8);
  EXPECT_EQ(check("0 3\n").count, 0);
}

TEST(CheckWordVectors, ReadsEveryLine) {
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += "w" + std::to_string(i) + " 1 2\n";
  EXPECT_EQ(check(bytes).count, 5000);
  EXPECT_EQ(check_refusal(bytes + "bad 1 12x\n"),
            "v:5001: expected a vector of width 2 after \"bad\", got \"12x\" as number 2");
  EXPECT_EQ(check_refusal(bytes + "bad 1\n"),
            "v:5001: expected a word and a vector of width 2, got a field count of 2");
  EXPECT_EQ(check_refusal(bytes + "bad 1 1e39\n"),
            "v:5001: expected numbers that float32 can hold after \"bad\", got \"1e39\"");
  EXPECT_EQ(check_refusal("5001 2\n" + bytes),
            "v:1: the file is truncated: expected a word count of 5001, got 5000");
  EXPECT_EQ(
      check_refusal("the 1 2\ncat 1"),
      "v:2: the file is truncated: expected a word and a vector of width 2, got a field count of "
      "2");
  EXPECT_EQ(check_refusal("the 1 2\ncat 1 2e"),
            "v:2: the file is truncated: expected a vector of width 2 after \"cat\", got \"2e\" as "
            "number 2");
  EXPECT_EQ(check_refusal("1 999999999999\nthe 1\n"),
            "v:2: expected a word and a vector of width 999999999999, got a line of 5 bytes");
  EXPECT_EQ(check_refusal(""), "v:1: expected a word and its numbers, got an empty file");
  EXPECT_EQ(check_refusal("\n\n"), "v:2: expected a word and its numbers, got empty lines");
  std::string not_finite = binary("2 2", {{"a", {1, 2}}, {"b", {3, 4}}});
  not_finite.replace(not_finite.size() - 5, 4, bytes_of({std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_EQ(check_refusal(not_finite),
            "v: byte 21: expected finite numbers after \"b\", got nan as number 2");
}

TEST(CheckWordVectors, AStopFlagStops) {
  const std::atomic<bool> stop{true};
  EXPECT_THROW(check("cat 1 2\n", {.stop = &stop}), Cancelled);
}

}  // namespace
}  // namespace qkv::app
