// SPDX-License-Identifier: Apache-2.0
// Each row of errors.tsv is a test: its call must throw the row's Error and leave all memory
// unchanged.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/errors/c_calls.h"
#include "tests/errors/table.h"

namespace qkv::test {

// GoogleTest prints the parameter of a failed test by the function of this name.
void PrintTo(const Row& row, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << row.call;
}

namespace {

// Lower bounds, so that a table that is cut short fails.
constexpr std::size_t kFewestRows = 440, kFewestRowsInC = 250;

struct Table {
  std::vector<Row> rows;
  std::string fault;
};

const Table& table() {
  static const Table kTable = [] {
    Table read;
    std::ifstream file(QKV_SOURCE_DIR "/tests/errors.tsv");
    if (!file) return Table{{}, "cannot open " QKV_SOURCE_DIR "/tests/errors.tsv"};
    try {
      read.rows = read_table(file);
    } catch (const TableError& error) {
      read.fault = error.what();
    }
    return read;
  }();
  return kTable;
}

TEST(Table, IsReadAndLongEnough) {
  EXPECT_EQ(table().fault, "");
  EXPECT_GE(table().rows.size(), kFewestRows);
}

// The rows whose function and arguments exist in C.
const std::vector<Row>& rows_in_c() {
  static const std::vector<Row> kRows = [] {
    std::vector<Row> rows;
    std::copy_if(table().rows.begin(), table().rows.end(), std::back_inserter(rows), is_in_c);
    return rows;
  }();
  return kRows;
}

class WrongCall : public testing::TestWithParam<Row> {};

TEST_P(WrongCall, Throws) { EXPECT_EQ(check(GetParam()), "") << "errors.tsv:" << GetParam().line; }

INSTANTIATE_TEST_SUITE_P(Errors, WrongCall, testing::ValuesIn(table().rows),
                         [](const auto& row) { return row.param.id; });

// The C interface reports the errors that C++ throws.
TEST(WrongCallInC, ReportsTheSame) {
  EXPECT_GE(rows_in_c().size(), kFewestRowsInC);
  for (const Row& row : rows_in_c()) {
    EXPECT_EQ(check(row, prepare_in_c), "") << "errors.tsv:" << row.line;
  }
}

// A message is one line, "function: argument rule, got value", without names of internals.
TEST(Table, MessagesAreForUsers) {
  for (const Row& row : table().rows) {
    SCOPED_TRACE("errors.tsv:" + std::to_string(row.line) + ": " + row.message);
    EXPECT_NE(row.message.find(": "), std::string::npos) << "no function before a colon";
    for (const char* inside : {"qkv", "core::", "attn", "reference::", "operand", "0x", "\n"}) {
      EXPECT_EQ(row.message.find(inside), std::string::npos) << inside;
    }
    EXPECT_LE(row.message.size(), 220U);
    EXPECT_NE(row.message.back(), '.');
  }
}

// ---- read_table() and check() find faults ---------------------------------------------------

std::string reading(const std::string& text) {
  std::istringstream in(text);
  try {
    read_table(in);
  } catch (const TableError& error) {
    return error.what();
  }
  return "";
}

TEST(Reader, NamesTheLine) {
  EXPECT_EQ(reading("# head\n\nid\tcall\tvalue\tmessage\n"), "");
  EXPECT_EQ(reading("# head\nid\tcall\tvalue\n"),
            "errors.tsv:2: must have 4 columns with tabs between them, got 3");
  EXPECT_EQ(reading("id\t\tvalue\tmessage\n"), "errors.tsv:1: has an empty column");
  EXPECT_EQ(reading("a b\tcall\tvalue\tmessage\n"),
            "errors.tsv:1: id must be of letters, digits and _, got a b");
  EXPECT_EQ(reading("id\tcall\tfault\tmessage\n"),
            "errors.tsv:1: kind must be value or type, got fault");
  EXPECT_EQ(reading("a\tcall\ttype\tm\n\na\tcall\ttype\tm\n"),
            "errors.tsv:3: the id a stands twice");
}

// Returns what check() reports, or the message of the TableError that it throws.
std::string checking(const std::string& call, const std::string& message = "m",
                     ErrorKind kind = ErrorKind::kValue) {
  try {
    return check({7, "id", call, kind, message});
  } catch (const TableError& error) {
    return error.what();
  }
}

TEST(Reader, RefusesCallsItCannotMake) {
  EXPECT_EQ(checking("fly q=f32[2,3]"), "errors.tsv:7: \"fly\" is no function of this table");
  EXPECT_EQ(checking("softmax x=f32[2] y=f32[2]"), "errors.tsv:7: softmax has no argument y");
  EXPECT_EQ(checking("softmax x=f32[2] x=f32[2]"), "errors.tsv:7: \"x\" stands twice in the call");
  EXPECT_EQ(checking("softmax x"), "errors.tsv:7: \"x\" is no name=value");
  EXPECT_EQ(checking("softmax x=f31[2]"), "errors.tsv:7: \"f31\" is no dtype");
  EXPECT_EQ(checking("softmax x=f32(2)"), "errors.tsv:7: \"f32(2)\" is no dtype");
  EXPECT_EQ(checking("softmax x=f32[2"), "errors.tsv:7: \"[2\" is no list like [2,3]");
  EXPECT_EQ(checking("softmax x=f32[2x]"), "errors.tsv:7: \"2x\" is no number that fits");
  EXPECT_EQ(checking("softmax x=i8[1]{300}"), "errors.tsv:7: \"300\" is no number that fits");
  EXPECT_EQ(checking("softmax x=f32[2]{1,2,3}"), "errors.tsv:7: x has 2 elements but 3 values");
  EXPECT_EQ(checking("softmax x=f32[2]@y"),
            "errors.tsv:7: x lies in y, which has no memory of its own");
  EXPECT_EQ(checking("softmax x=f32[1099511627776]"),
            "errors.tsv:7: x takes more memory than a row may");
  EXPECT_EQ(checking("attention score=best"), "errors.tsv:7: score must not be \"best\"");
  EXPECT_EQ(checking("Plan::run q=f32[2,3]"),
            "errors.tsv:7: the plan cannot be made: Plan: k is absent but q and k are always "
            "needed");
}

TEST(Judge, FindsEachFault) {
  const std::string valid = "softmax x=f32[2,3] out=f32[2,3]";
  EXPECT_EQ(checking(valid), "wanted value \"m\"\n   got nothing\nthe call wrote to out");
  const std::string invalid = "softmax x=f32[2,3] out=f32[2,4]";
  const std::string message = "softmax: out must have the shape [2,3], got float32 [2,4]";
  EXPECT_EQ(checking(invalid, message), "");
  EXPECT_EQ(checking(invalid, message + "!"),
            "wanted value \"" + message + "!\"\n   got value \"" + message + "\"");
  EXPECT_EQ(checking(invalid, message, ErrorKind::kType),
            "wanted type \"" + message + "\"\n   got value \"" + message + "\"");
}

}  // namespace
}  // namespace qkv::test
