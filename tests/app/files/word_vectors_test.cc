// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>
#include <qkv/error.h>

#include "tests/app/files/files.h"
#include "text/near_words.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using Texts = std::vector<std::string>;

std::vector<Spellings> one_spelling_each(const Texts& words) {
  std::vector<Spellings> wanted;
  for (const std::string& word : words) wanted.push_back({word});
  return wanted;
}

// Reads the vectors of `words` from a file of the given bytes.
WordVectors read(std::string_view bytes, const Texts& words,
                 const WordVectorOptions& options = {}) {
  const Directory directory;
  return read_word_vectors(directory.write("v.txt", bytes), one_spelling_each(words), options);
}

// The message of the error that read() throws, from the file's name on: "v.txt:3: expected ...".
std::string refusal(std::string_view bytes, const Texts& words = {"cat"},
                    const WordVectorOptions& options = {}) {
  const std::string text = complaint<InputError>([&] { read(bytes, words, options); });
  const std::size_t name = text.find("v.txt:");
  return name == std::string::npos ? text : text.substr(name);
}

std::vector<float> vector_of(const WordVectors& vectors, std::size_t word) {
  std::vector<float> values;
  for (Index c = 0; c < vectors.vectors.size(1); ++c) {
    values.push_back(vectors.vectors.view().at<float>({vectors.words[word].row, c}));
  }
  return values;
}
using Floats = std::vector<float>;

TEST(WordVectors, FindsWordsInTheOrderAsked) {
  const auto found = read("the 1 2\ncat 3 -4e-1\nmat 5 6\n", {"mat", "the"});
  EXPECT_EQ(found.vectors.shape(), Dims(2, 2));
  EXPECT_EQ(vector_of(found, 0), (Floats{5, 6}));
  EXPECT_EQ(vector_of(found, 1), (Floats{1, 2}));
}

TEST(WordVectors, LineEndsAndByteOrderMarksDoNotMatter) {
  for (const std::string_view bytes :
       {"the 1 2\ncat 3 4\n", "the 1 2\ncat 3 4", "the 1 2\r\ncat 3 4\r\n", "the 1 2\r\ncat 3 4\r",
        "\xEF\xBB\xBFthe 1 2\ncat 3 4\n", "the 1 2 \ncat 3 4 \n", "the\t1\t2\ncat\t3\t4\n",
        "the 1 2\n\ncat 3 4\n\n", "2 2\nthe 1 2\ncat 3 4\n",
        "\xEF\xBB\xBF"
        "2 2\r\nthe 1 2\r\ncat 3 4\r\n"}) {
    const auto found = read(bytes, {"cat", "the"});
    EXPECT_EQ(vector_of(found, 0), (Floats{3, 4})) << bytes;
    EXPECT_EQ(vector_of(found, 1), (Floats{1, 2})) << bytes;
  }
}

// A missing word makes the reader read to the end.
TEST(WordVectors, TheLastLineNeedsNoEnd) {
  for (const std::string_view bytes : {"the 1 2\ncat 3 4", "the 1 2\ncat 3 4\r", "cat 3 4"}) {
    const auto found = read(bytes, {"dog", "cat"});
    EXPECT_EQ(found.words[0].row, -1);
    EXPECT_EQ(vector_of(found, 1), (Floats{3, 4})) << bytes;
  }
}

TEST(WordVectors, AWordMayHoldBlanks) {
  const auto found = read("the 1 2\nat name@domain.com 3 4\n. . . 5 6\nroute 66 7 8\n",
                          {". . .", "at name@domain.com", "route 66"});
  EXPECT_EQ(vector_of(found, 0), (Floats{5, 6}));
  EXPECT_EQ(vector_of(found, 1), (Floats{3, 4}));
  EXPECT_EQ(vector_of(found, 2), (Floats{7, 8}));
}

TEST(WordVectors, TheFirstLineMayHaveAWordWithBlanks) {
  EXPECT_EQ(vector_of(read(". . 1.5 2\ncat 3 4\n", {"cat"}), 0), (Floats{3, 4}));
}

TEST(WordVectors, TheFirstOfSeveralLinesCounts) {
  EXPECT_EQ(vector_of(read("cat 1 2\ncat 3 4\n", {"cat", "dog"}), 0), (Floats{1, 2}));
}

TEST(WordVectors, TheBestSpellingCountsWhereverItStands) {
  const Directory directory;
  const std::string path = directory.write("v.txt", "the 1 2\nThe 3 4\npolish 5 6\n");
  const std::vector<Spellings> wanted{{"The", "the"}, {"Polish", "polish"}, {"DOG", "dog"}};
  const auto found = read_word_vectors(path, wanted);
  EXPECT_EQ(found.words[0].spelling, "The");
  EXPECT_EQ(vector_of(found, 0), (Floats{3, 4}));
  EXPECT_EQ(found.words[1].spelling, "polish");
  EXPECT_EQ(vector_of(found, 1), (Floats{5, 6}));
  EXPECT_EQ(found.words[2].row, -1);
}

TEST(WordVectors, WidthIsGivenOrStandsInTheHeaderOrIsCounted) {
  EXPECT_EQ(read("cat 1 2 3\n", {"cat"}).vectors.size(1), 3);
  EXPECT_EQ(read("7 3\ncat 1 2 3\n", {"cat"}).vectors.size(1), 3);
  EXPECT_EQ(read("cat 1 2 3\n", {"cat"}, {.width = 3}).vectors.size(1), 3);
  EXPECT_EQ(vector_of(read("7 3\n", {"7"}, {.width = 1}), 0), Floats{3});
  EXPECT_EQ(read("1 3\ncat 1 2 3\n", {"dog"}).vectors.shape(), Dims(0, 3));
}

TEST(WordVectors, OnlyWantedLinesAreParsedAfterTheFirst100) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += "w" + std::to_string(i) + " 1 2\n";
  const std::string bad = bytes + "bad 1 12x\n";
  EXPECT_EQ(vector_of(read(bad + "cat 3 4\n", {"cat"}), 0), (Floats{3, 4}));
  EXPECT_EQ(refusal(bad + "cat 3 4\n", {"cat", "bad"}),
            "v.txt:101: expected a vector of width 2 after \"bad\", got \"12x\" as number 2");
}

TEST(WordVectors, ReadingStopsWhenAllIsFound) {
  std::string bytes = "cat 1 2\n";
  for (int i = 0; i < 200000; ++i) bytes += "w" + std::to_string(i) + " 1 2\n";
  bytes += std::string("\0", 1);
  EXPECT_EQ(read(bytes, {"cat"}).words[0].row, 0);
  EXPECT_NE(refusal(bytes, {"cat", "dog"}).find("NUL"), std::string::npos);
}

TEST(WordVectors, RefusalsNameFileAndLine) {
  EXPECT_EQ(refusal(""), "v.txt:1: expected a word and its numbers, got an empty file");
  EXPECT_EQ(refusal("the 1 2\ncat 3\n"),
            "v.txt:2: expected a word and a vector of width 2, got a field count of 2");
  EXPECT_EQ(refusal("the 1 2\ncat\n"),
            "v.txt:2: expected a word and a vector of width 2, got a field count of 1");
  EXPECT_EQ(refusal("the 1.5 2.5\ncat 3.5 4.5 5.5\n"),
            "v.txt:2: expected a vector of width 2 after \"cat\", got more: \"3.5\" before it");
  EXPECT_EQ(refusal("the 1 2\ncat 3 12x\n"),
            "v.txt:2: expected a vector of width 2 after \"cat\", got \"12x\" as number 2");
  EXPECT_EQ(refusal("the 1 2\ncat 1e999 4\n"),
            "v.txt:2: expected a vector of width 2 after \"cat\", got \"1e999\" as number 1");
  EXPECT_EQ(refusal("the 1 2\ncat nan 4\n"),
            "v.txt:2: expected a vector of width 2 after \"cat\", got \"nan\" as number 1");
  EXPECT_EQ(refusal("the 1 2\ncat 3.4028235e38 4\n"), "no exception");
  EXPECT_EQ(refusal("the 1 2\ncat 1e39 4\n"),
            "v.txt:2: expected numbers that float32 can hold after \"cat\", got \"1e39\"");
  EXPECT_EQ(refusal(std::string_view("the 1 2\nc\0t 3 4\n", 16)),
            "v.txt:2: expected UTF-8 text, got a NUL byte (a binary file?)");
  EXPECT_EQ(refusal("the 1 12x 3\n"), "v.txt:1: expected a word and its numbers, got \"12x\"");
  EXPECT_EQ(refusal("some words\n"),
            "v.txt:1: expected a word and its numbers, got \"some words\"");
  EXPECT_EQ(refusal("cat\n"), "v.txt:1: expected a word and its numbers, got \"cat\"");
  EXPECT_EQ(refusal("9 3\ncat 1 2\n"),
            "v.txt:2: expected a word and a vector of width 3, got a field count of 3");
  EXPECT_EQ(refusal("-1 3\ncat 1 2 3\n"),
            "v.txt:1: expected a count and a width, or a word and its numbers, got \"-1 3\"");
  EXPECT_EQ(refusal("9 3\ncat 1 2 3\n", {"cat"}, {.width = 4}),
            "v.txt:1: expected vectors of width 4, got a header that says 3");
  EXPECT_EQ(refusal("the 1.0 2.0\n", {"cat"}, {.width = 1}),
            "v.txt:1: expected a vector of width 1 after \"the\", got more: \"1.0\" before it");
  EXPECT_EQ(refusal("cat " + std::string(2 << 20, '1') + "\n"),
            "v.txt:1: expected a line of at most 1 MiB");
}

// A wrong count in the header is found only by reading to the end, and thus only if a word is
// missing.
TEST(WordVectors, AHeaderCountsTheWords) {
  const std::string two = "the 1 2\ncat 3 4\n";
  EXPECT_EQ(refusal("9 2\n" + two, {"dog"}),
            "v.txt:1: the file is truncated: expected a word count of 9, got 2");
  EXPECT_EQ(refusal("1 2\n" + two, {"dog"}), "v.txt:1: expected a word count of 1, got 2");
  EXPECT_EQ(refusal("3 2\n" + two + "\n", {"dog"}),
            "v.txt:1: the file is truncated: expected a word count of 3, got 2");
  EXPECT_EQ(refusal("2 2\n" + two, {"dog"}), "no exception");
  EXPECT_EQ(refusal("9 2\n" + two, {"cat"}), "no exception");
}

// Near spellings are searched for in a second reading, once a word is known to be missing.
TEST(WordVectors, AFileIsReadTwiceForMissingWordsOnly) {
  const auto readings = [](const Texts& words, int near) {
    int count = 0;
    const auto progress = [&](Index done, Index total) { count += done == total; };
    EXPECT_EQ(read("the 1 2\ncat 3 4\n", words, {.near = near, .progress = progress}).words.size(),
              words.size());
    return count;
  };
  EXPECT_EQ(readings({"cat", "the"}, 5), 1);
  EXPECT_EQ(readings({"cat", "cats"}, 0), 1);
  EXPECT_EQ(readings({"cat", "cats"}, 5), 2);
}

// If one of the first 1,000 requested words is not found, near spellings are given for it.
TEST(WordVectors, NearSpellingsStandWithTheirWord) {
  Texts words{"the", "cats", "cat"};
  words.resize(1000, "zzzz");
  words.insert(words.end() - 1, {"thy"});
  words.push_back("cab");
  const auto found = read("the 1 2\ncat 3 4\n", words);
  EXPECT_EQ(found.words[0].near, Texts{});
  EXPECT_EQ(found.words[1].near, Texts{"cat"});
  EXPECT_EQ(found.words[999].near, Texts{"the"});
  EXPECT_EQ(found.words[1001].near, Texts{});
}

TEST(WordVectors, MissingFilesAreNamed) {
  const Directory directory;
  EXPECT_EQ(complaint<InputError>(
                [&] { read_word_vectors(directory / "none", one_spelling_each({"a"})); }),
            directory / "none" + ": No such file or directory");
  EXPECT_EQ(
      complaint<InputError>([&] { read_word_vectors(directory / ".", one_spelling_each({"a"})); }),
      directory / "." + ": expected a file, got a directory");
}

// Words have different lengths, so that lines lie across the borders of the reader's 1 MiB blocks.
TEST(WordVectors, BordersOfBlocksDoNotMatter) {
  std::string bytes;
  Texts words;
  for (int i = 0; bytes.size() < (5U << 20); ++i) {
    const std::string word =
        "w" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 61), 'x');
    bytes += word + " " + std::to_string(i) + " 0.5\n";
    words.push_back(word);
  }
  const auto found = read(bytes, words, {.near = 0});
  ASSERT_EQ(found.vectors.size(0), static_cast<Index>(words.size()));
  for (std::size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(vector_of(found, i), (Floats{static_cast<float>(i), 0.5F})) << words[i];
  }
}

TEST(WordVectors, AStopFlagStops) {
  const std::atomic<bool> stop{true};
  EXPECT_THROW(read("cat 1 2\n", {"cat"}, {.stop = &stop}), Cancelled);
}

TEST(WordVectors, NearSpellingsOfMissingWords) {
  const std::string bytes =
      "the 1 2\ntalks 1 2\nwalker 1 2\nwall 1 2\nwalk 1 2\nwalking 1 2\nwalked 1 2\nwalls 1 "
      "2\nwalk 3 4\nsea 1 2\n";
  const auto found = read(bytes, {"walks", "the", "zzzz"});
  EXPECT_EQ(found.words[0].near, (Texts{"walk", "walker", "walked", "walking", "talks"}));
  EXPECT_EQ(found.words[1].near, Texts{});
  EXPECT_EQ(found.words[2].near, Texts{});
  EXPECT_EQ(read(bytes, {"walks"}, {.near = 2}).words[0].near, (Texts{"walk", "walker"}));
  EXPECT_EQ(read(bytes, {"walks"}, {.near = 0}).words[0].near, Texts{});
}

TEST(WordVectors, NearSpellingsAreFitToPrint) {
  const auto found =
      read("walk\x1b 1 2\nwalk\xFF 1 2\nwalk of life 1 2\nwalk\u00E9 1 2\n", {"walks"});
  EXPECT_EQ(found.words[0].near, Texts{"walk\u00E9"});
}

TEST(NearWords, DistanceCountsEdits) {
  const auto distance = [](std::u32string_view a, std::u32string_view b) {
    return edit_distance(a, b, 99);
  };
  EXPECT_EQ(distance(U"", U""), 0U);
  EXPECT_EQ(distance(U"kitten", U"sitting"), 3U);
  EXPECT_EQ(distance(U"", U"abc"), 3U);
  EXPECT_EQ(distance(U"teh", U"the"), 1U);
  EXPECT_EQ(distance(U"ca", U"abc"), 3U);
  EXPECT_EQ(distance(U"caf\u00E9", U"cafe"), 1U);
}

// edit_distance() returns the distance if it is within the bound, else a number above the bound;
// nearness() follows the rule of near_words.h.
TEST(NearWords, EndingEarlyLosesNothing) {
  std::vector<std::u32string> all;
  for (int n = 0; n < 1024; ++n) {
    std::u32string word;
    for (int rest = n, i = 0; i < 5; ++i, rest /= 4) {
      if (rest % 4 < 3 || i < 2)
        word += std::u32string_view(U"ab\u00E9\u4E2D")[static_cast<std::size_t>(rest % 4)];
    }
    all.push_back(word);
  }
  for (std::size_t t = 0; t < all.size(); t += 37) {
    for (const std::u32string& word : all) {
      const std::size_t distance = edit_distance(all[t], word, 99);
      for (std::size_t most = 0; most < 5; ++most) {
        const std::size_t bounded = edit_distance(all[t], word, most);
        if (distance <= most) {
          ASSERT_EQ(bounded, distance);
        } else {
          ASSERT_GT(bounded, most);
        }
      }
      const auto stem = std::max<std::size_t>(3, (all[t].size() * 2 + 2) / 3);
      const bool same_stem = word.starts_with(all[t].substr(0, stem));
      const bool near = same_stem || distance <= std::max<std::size_t>(1, all[t].size() / 3);
      ASSERT_EQ(nearness(all[t], word),
                near ? std::optional(Nearness{!same_stem, distance}) : std::nullopt)
          << to_utf8(all[t]) << " " << to_utf8(word);
    }
  }
}

TEST(NearWords, RubbishIsNearToNothing) {
  const std::u32string longest(64, U'a');
  EXPECT_TRUE(nearness(longest, longest));
  EXPECT_FALSE(nearness(longest, longest + U'a'));
  EXPECT_FALSE(nearness(longest + U'a', longest));
  EXPECT_FALSE(nearness(U"", U"a"));
}

// All words of a file of the given bytes.
WordTable read_all(std::string_view bytes, std::optional<Index> most = std::nullopt,
                   const WordVectorOptions& options = {}) {
  const Directory directory;
  return read_all_word_vectors(directory.write("v.txt", bytes), most, options);
}

Floats numbers_of(const WordTable& table) {
  const auto values = table.vectors.values<float>();
  return {values.begin(), values.end()};
}

TEST(AllWordVectors, AreInTheOrderOfTheFile) {
  for (const std::string_view bytes :
       {"the 1 2\ncat 3 4\n. . 5 6\n", "3 2\nthe 1 2\ncat 3 4\n. . 5 6\n"}) {
    const WordTable all = read_all(bytes);
    EXPECT_EQ(all.words, (Texts{"the", "cat", ". ."}));
    EXPECT_EQ(all.vectors.shape(), Dims(3, 2));
    EXPECT_EQ(numbers_of(all), (Floats{1, 2, 3, 4, 5, 6}));
  }
  const std::string binary = std::string("2 1\na ") + std::string("\0\0\x80\x3f", 4) + "\nb " +
                             std::string("\0\0\0\x40", 4);
  const WordTable all = read_all(binary);
  EXPECT_EQ(all.words, (Texts{"a", "b"}));
  EXPECT_EQ(numbers_of(all), (Floats{1, 2}));
}

TEST(AllWordVectors, TheFirstVectorOfAWordCounts) {
  const WordTable all = read_all("cat 1 2\nthe 3 4\ncat 5 6\nmat 7 8\n", 3);
  EXPECT_EQ(all.words, (Texts{"cat", "the", "mat"}));
  EXPECT_EQ(numbers_of(all), (Floats{1, 2, 3, 4, 7, 8}));
}

// The reader collects numbers in blocks of 2^20.
TEST(AllWordVectors, OfSeveralBlocks) {
  constexpr Index kWidth = 1000;
  std::string bytes;
  for (int n = 0; n < 2500; ++n) {
    bytes += "w" + std::to_string(n);
    for (Index i = 0; i < kWidth; ++i) bytes += i == 7 ? " " + std::to_string(n) : " 0";
    bytes += "\n";
  }
  const WordTable all = read_all(bytes);
  ASSERT_EQ(all.vectors.shape(), Dims(2500, kWidth));
  for (Index n = 0; n < 2500; ++n) {
    EXPECT_EQ(all.words[static_cast<std::size_t>(n)], "w" + std::to_string(n));
    EXPECT_EQ(all.vectors.view().at<float>({n, 7}), static_cast<float>(n));
    EXPECT_EQ(all.vectors.view().at<float>({n, 8}), 0);
  }
}

TEST(AllWordVectors, ALimitStopsTheReading) {
  const std::string_view damaged = "the 1 2\ncat 3 4\nmat x 6\n";
  EXPECT_EQ(read_all(damaged, 2).words, (Texts{"the", "cat"}));
  EXPECT_THROW(read_all(damaged, 3), InputError);
  EXPECT_THROW(read_all(damaged), InputError);
  EXPECT_EQ(read_all("9 2\nthe 1 2\n", 1).words, Texts{"the"});
  EXPECT_THROW(read_all("9 2\nthe 1 2\n"), InputError);
}

TEST(AllWordVectors, RefusesInvalidArgumentsAndFiles) {
  const auto text = [](const auto& call) { return complaint<Error>(call); };
  EXPECT_EQ(text([] { read_all("a 1\n", 0); }),
            "read_all_word_vectors: most_words must be at least 1, got 0");
  EXPECT_EQ(text([] { read_all("a 1\n", 1, {.width = -1}); }),
            "read_all_word_vectors: width must not be negative");
  EXPECT_THROW(read_all(""), InputError);
  EXPECT_THROW(read_all("\n\n"), InputError);
  EXPECT_EQ(read_all("0 3\n").vectors.shape(), Dims(0, 3));
  const std::atomic<bool> stop{true};
  EXPECT_THROW(read_all("a 1\n", 1, {.stop = &stop}), Cancelled);
}

// Waiting for a pipe's writer, or for data from it, ends when another thread sets the stop flag.
// With a flag that is never set, a pipe is read like a file.
TEST(WordVectors, APipeWithoutDataIsGivenUp) {
  const Directory directory;
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto give_up = [&] {
    std::atomic<bool> stop{false};
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      stop = true;
    });
    EXPECT_THROW(read_all_word_vectors(pipe, std::nullopt, {.stop = &stop}), Cancelled);
    other.join();
  };
  give_up();  // nobody has opened the pipe to write
  const int writer = ::open(pipe.c_str(), O_RDWR);
  ASSERT_GE(writer, 0);
  give_up();
  ASSERT_EQ(::write(writer, "the 1 2\n", 8), 8);
  give_up();
  ::close(writer);
  const std::atomic<bool> go_on{false};
  const auto words = [&](std::string_view bytes) {
    auto written = std::async(std::launch::async, [&] { std::ofstream(pipe) << bytes; });
    return read_all_word_vectors(pipe, std::nullopt, {.stop = &go_on}).words;
  };
  EXPECT_EQ(words("the 1 2\ncat 3 4\n"), (Texts{"the", "cat"}));
  EXPECT_THROW(words(""), InputError);
}

}  // namespace
}  // namespace qkv::app
