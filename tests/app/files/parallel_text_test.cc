// SPDX-License-Identifier: Apache-2.0
#include "files/parallel_text.h"

#include <atomic>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "tests/app/files/data_file.h"
#include "tests/app/files/files.h"
#include "tests/support/errors.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using Rows = std::vector<std::vector<std::string>>;

Rows read(std::string_view bytes, const ParallelTextOptions& options = {}) {
  const Directory directory;
  return read_parallel_text(directory.write("a.tsv", bytes), options);
}

std::string refusal(std::string_view bytes, const ParallelTextOptions& options = {}) {
  const std::string text = complaint<InputError>([&] { read(bytes, options); });
  const std::size_t name = text.find("a.tsv:");
  return name == text.npos ? text : text.substr(name);
}

TEST(ParallelText, RowsMayHaveAnyNumberOfColumns) {
  EXPECT_EQ(read("a\tb\nc d\n\te\t\n"), (Rows{{"a", "b"}, {"c d"}, {"", "e", ""}}));
}

TEST(ParallelText, LineEndsAndAByteOrderMarkDoNotMatter) {
  for (const std::string_view bytes : {"a\tb\nc\td\n", "a\tb\nc\td", "a\tb\r\nc\td\r\n",
                                       "\xEF\xBB\xBF"
                                       "a\tb\nc\td\n"}) {
    EXPECT_EQ(read(bytes), (Rows{{"a", "b"}, {"c", "d"}})) << bytes;
  }
}

TEST(ParallelText, ColumnsAreChosenInTheirOrder) {
  EXPECT_EQ(read("a\tb\tc\nd\te\tf\n", {.columns = {2, 0, 2}}),
            (Rows{{"c", "a", "c"}, {"f", "d", "f"}}));
  EXPECT_EQ(refusal("a\tb\tc\nd\te\n", {.columns = {2}}),
            "a.tsv:2: expected 3 or more columns, got 2; tabs separate columns");
}

TEST(ParallelText, RefusalsNameTheLine) {
  EXPECT_EQ(refusal("a\tb\nc\n", {.least_columns = 2}),
            "a.tsv:2: expected 2 or more columns, got 1; tabs separate columns");
  EXPECT_EQ(refusal(""), "a.tsv:1: expected 1 or more columns, got an empty file");
  EXPECT_EQ(refusal("a\n\nb\n"), "a.tsv:2: expected 1 or more columns, got a blank line");
  EXPECT_EQ(refusal("a\n\r\nb\n"), "a.tsv:2: expected 1 or more columns, got a blank line");
  EXPECT_EQ(refusal("a\n\n\n\xFF\n"), "a.tsv:2: expected 1 or more columns, got a blank line");
  EXPECT_EQ(refusal("\n\n"), "a.tsv:1: expected 1 or more columns, got a blank line");
  EXPECT_EQ(refusal(std::string_view("a\tb\nc\t\0\n", 8)),
            "a.tsv:2: expected UTF-8 text, got a NUL byte (a binary file?)");
  EXPECT_EQ(refusal("a\nb\xC3\n"), "a.tsv:2: expected UTF-8, got \"\\xc3\" at byte 1 of the line");
  EXPECT_EQ(refusal("a\n\xED\xA0\x80\n"),
            "a.tsv:2: expected UTF-8, got \"\\xed\" at byte 0 of the line");
}

TEST(ParallelText, EmptyLinesMayBeSkipped) {
  const ParallelTextOptions options{.empty_lines = EmptyLines::kSkipped};
  EXPECT_EQ(read("\na\n\r\nb\n\n", options), (Rows{{"a"}, {"b"}}));
  EXPECT_EQ(read("\n", options), Rows{});
}

TEST(ParallelText, BlankLinesAtTheEndAreNoError) {
  for (const std::string_view bytes :
       {"a\n\n", "a\n\r\n\n\n", "a\n \n", "a\n\xE2\x80\x8B\n", "a\n\xEF\xBB\xBF"}) {
    EXPECT_EQ(read(bytes), Rows{{"a"}}) << bytes;
  }
  EXPECT_EQ(refusal("a\tb\n\t\n\xE2\x80\x8B\n\xC3\xA9\tb\n", {.least_columns = 2}),
            "a.tsv:3: expected 2 or more columns, got a blank line");
}

// A line of blanks and zero-width characters is blank.
TEST(ParallelText, LinesOfNoWidthAreBlank) {
  const ParallelTextOptions options{.empty_lines = EmptyLines::kSkipped};
  EXPECT_EQ(read("\xE2\x80\x8B\na\n \xE2\x80\x8D \nb\n", options), (Rows{{"a"}, {"b"}}));
}

TEST(ParallelText, BadLinesMayBeLeftOut) {
  const std::string mebibyte(std::size_t{1} << 20, 'x');
  std::string bytes = "a\tb\nc\n\n\nd\xFF\tf\ng\th\n";
  bytes += std::string_view("\0i\0\tj\0\n", 7);
  bytes += "k\tl\n" + mebibyte + mebibyte;
  bytes += std::string_view("\0\n", 2);
  bytes += "m\tn\n" + mebibyte;
  std::vector<std::string> errors;
  ParallelTextOptions options{.least_columns = 2};
  options.bad_line = [&](const InputError& error) {
    const std::string text = error.what();
    errors.push_back(text.substr(text.find("a.tsv:") + 6));
  };
  EXPECT_EQ(read(bytes, options), (Rows{{"a", "b"}, {"g", "h"}, {"k", "l"}, {"m", "n"}}));
  EXPECT_EQ(errors, (std::vector<std::string>{
                        "2: expected 2 or more columns, got 1; tabs separate columns",
                        "3: expected 2 or more columns, got a blank line",
                        "4: expected 2 or more columns, got a blank line",
                        "5: expected UTF-8, got \"\\xff\" at byte 1 of the line",
                        "7: expected UTF-8 text, got a NUL byte (a binary file?)",
                        "9: expected a line of at most 1 MiB",
                        "11: expected a line of at most 1 MiB",
                    }));
}

TEST(ParallelText, EmptyLinesMayBeKept) {
  const ParallelTextOptions options{.columns = {0}, .empty_lines = EmptyLines::kKept};
  EXPECT_EQ(read("\na\tb\n\r\nc", options), (Rows{{""}, {"a"}, {""}, {"c"}}));
  EXPECT_EQ(read("", options), Rows{});
  EXPECT_EQ(refusal("a\tb\n\n", {.least_columns = 2, .empty_lines = EmptyLines::kKept}),
            "a.tsv:2: expected 2 or more columns, got 1; tabs separate columns");
}

// Complete rows are delivered before more bytes are read: here the writer waits for each row.
TEST(ParallelText, RowsAreDeliveredBeforeMoreIsRead) {
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  const auto say = [&](std::string_view text) {
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  say("a\nb");
  Rows rows;
  ::alarm(1800);  // a reader that waits for more would wait forever
  for_each_row("/dev/fd/" + std::to_string(ends[0]), {},
               [&](std::span<const std::string_view> fields, Index line) {
                 rows.emplace_back(fields.begin(), fields.end());
                 if (line == 1) say("c\nd\n");
                 if (line == 2) ::close(ends[1]);
                 return true;
               });
  ::alarm(0);
  ::close(ends[0]);
  EXPECT_EQ(rows, (Rows{{"a"}, {"bc"}, {"d"}}));
}

TEST(ParallelText, ACallbackKnowsTheLineAndMayStop) {
  const Directory directory;
  std::vector<Index> lines;
  for_each_row(directory.write("a.tsv", "a\n\nb\nc\nd\xFF\n"),
               {.empty_lines = EmptyLines::kSkipped},
               [&](std::span<const std::string_view> fields, Index line) {
                 lines.push_back(line);
                 return fields[0] != "c";
               });
  EXPECT_EQ(lines, (std::vector<Index>{1, 3, 4}));
}

TEST(ParallelText, InvalidOptionsAreRefused) {
  EXPECT_EQ(test::message_of([] { read("a\n", {.columns = {-1}}); }),
            "read_parallel_text: columns must not be negative, got -1");
  EXPECT_EQ(test::message_of([] {
              for_each_row("none", {.least_columns = 0}, [](auto, auto) { return true; });
            }),
            "for_each_row: least_columns must be positive, got 0");
  EXPECT_THROW(read("a\n", {.columns = {std::numeric_limits<Index>::max()}}), Error);
  EXPECT_THROW(read("a\n", {.least_columns = 0}), Error);
  const std::atomic<bool> stop{true};
  EXPECT_THROW(read("a\n", {.stop = &stop}), Cancelled);
}

TEST(ParallelText, ReadsTatoeba) {
  const std::string path = test::data_file("tatoeba-eng-fra.tsv");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << " (set QKV_DATA_DIR)";
  const Rows rows = read_parallel_text(path, {.columns = {0, 1}, .least_columns = 2});
  EXPECT_GT(rows.size(), 100000U);
  std::size_t bytes = 0;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 2U);
    ASSERT_FALSE(row[0].empty() || row[1].empty());
    bytes += row[0].size() + row[1].size() + 2;
  }
  EXPECT_LE(bytes, std::filesystem::file_size(path));
}

}  // namespace
}  // namespace qkv::app
