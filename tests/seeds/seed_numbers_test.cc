// SPDX-License-Identifier: Apache-2.0
// Tests that the library computes the numbers printed in the four documents (docs/seeds.md), and
// that a wrong number is found.
#include "commands/about/seed_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "commands/about/seed_expressions.h"
#include "tests/support/compare.h"

// Such as "000_line_19_row_36": the document, and the row's line in it and in the table.
std::string test_name(const SeedRow& row) {
  std::string name = row.document + "_line_" + row.line + "_row_" + std::to_string(row.table_line);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// CTest names a test after what this prints.
void PrintTo(const SeedRow& row, std::ostream* out) { *out << test_name(row); }

namespace qkv::test {
namespace {

// ---- every row ------------------------------------------------------------------------------

class SeedNumbers : public testing::TestWithParam<SeedRow> {};

TEST_P(SeedNumbers, AreThePrintedOnes) {
  const SeedRow& row = GetParam();
  const SeedReport report = compare_seed_row(row, seed_values(row.expression));
  EXPECT_EQ(report.disagreeing, 0) << "seed_numbers.tsv:" << row.table_line << ": " << report.worst;
  EXPECT_EQ(report.numbers, row.truth ? 0 : static_cast<int>(row.expected.size()));
}

// A number that is changed by 1 in the units or in a printed decimal disagrees.
TEST_P(SeedNumbers, WithAnotherDigitAreNot) {
  const SeedRow& row = GetParam();
  const std::vector<double> got = seed_values(row.expression);
  int changed = 0;
  for (std::size_t n = 0; n < row.expected.size(); ++n) {
    const int decimals = row.digits == 12 ? 0 : row.digits;  // 12: a whole number
    for (const int sign : {-1, 1}) {
      for (int place = 0; place <= decimals; ++place) {
        SeedRow wrong = row;
        wrong.expected[n] += sign * std::pow(10.0, -place);
        const SeedReport report = compare_seed_row(wrong, got);
        EXPECT_EQ(report.disagreeing, 1) << report.worst;
        ++changed;
      }
    }
  }
  EXPECT_GE(changed, 2);
}

INSTANTIATE_TEST_SUITE_P(Documents, SeedNumbers,
                         testing::ValuesIn(read_seed_table(embedded_seed_table())),
                         [](const auto& row) { return test_name(row.param); });

// ---- the whole table --------------------------------------------------------------------------

TEST(SeedTable, IsWhole) {
  std::map<std::string, int> numbers;
  int truths = 0;
  const std::vector<SeedRow> rows = read_seed_table(embedded_seed_table());
  for (const SeedRow& row : rows) {
    if (row.truth) {
      ++truths;
    } else {
      numbers[row.document] += static_cast<int>(row.expected.size());
    }
  }
  // As counted in the documents: the column "in rows" in the head of the table.
  const std::map<std::string, int> want{{"000", 87}, {"001", 39}, {"002", 53}, {"003", 7}};
  EXPECT_EQ(numbers, want);
  EXPECT_EQ(truths, 2);
  EXPECT_EQ(rows.size(), 75U);
}

TEST(SeedTable, IsReportedAsAWhole) {
  const SeedReport report = check_seed_numbers(embedded_seed_table());
  EXPECT_EQ(report.numbers, 186);
  EXPECT_EQ(report.disagreeing, 0) << report.worst;
  EXPECT_GT(report.largest_difference, 0);
  // Half a unit of the fourth decimal: only exact numbers have fewer decimals.
  EXPECT_LE(report.largest_difference, 0.5e-4);
  EXPECT_NE(report.worst, "");
}

TEST(SeedTable, UsesEveryExpression) {
  std::set<std::string> used;
  for (const SeedRow& row : read_seed_table(embedded_seed_table())) {
    used.insert(row.expression);
    used.insert(row.expression.substr(0, row.expression.rfind('[')));
  }
  for (const std::string_view name : seed_expressions()) {
    EXPECT_TRUE(used.contains(std::string(name))) << name;
  }
}

// ---- a wrong table is found ---------------------------------------------------------------------

// Returns the table with its first `from` replaced by `to`.
std::string changed_table(std::string_view from, std::string_view to) {
  std::string table(embedded_seed_table());
  const std::size_t at = table.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? table : table.replace(at, from.size(), to);
}

TEST(WrongSeedTable, ADigitIsFoundAndNamed) {
  const SeedReport digit =
      check_seed_numbers(changed_table("p_attn\t0.8808 0.1192", "p_attn\t0.8808 0.1193"));
  EXPECT_EQ(digit.disagreeing, 1);
  EXPECT_EQ(digit.numbers, 186);
  EXPECT_EQ(digit.worst.find("000:66 p_attn (number 2): got 0.119"), 0U) << digit.worst;
  const SeedReport stride = check_seed_numbers(changed_table("\t36 1 6\t", "\t36 6 1\t"));
  EXPECT_EQ(stride.disagreeing, 2);
  EXPECT_EQ(stride.largest_difference, 5);
  EXPECT_EQ(check_seed_numbers(changed_table("\tFalse\t", "\tTrue\t")).disagreeing, 1);
}

// A small disagreement is named before a larger difference that rounding explains.
TEST(WrongSeedTable, ADisagreementIsTheWorst) {
  const SeedReport report = check_seed_numbers(
      "000\t1\tp_attn\t0.8808 0.1192\t4\n"
      "000\t2\tscaled dot, d 8: scores\t5.6569 2.8284\t4\n"
      "000\t3\tq1\t1.00001 1\t12\n");
  EXPECT_EQ(report.disagreeing, 1);
  EXPECT_EQ(report.worst.find("000:3 q1"), 0U) << report.worst;
  EXPECT_GT(report.largest_difference, 4e-5);
}

TEST(WrongSeedTable, AMissingNumberIsFound) {
  const SeedReport report = check_seed_numbers(changed_table("\t6 50\t", "\t6 50 1\t"));
  EXPECT_EQ(report.disagreeing, 3);
  EXPECT_EQ(report.largest_difference, std::numeric_limits<double>::infinity());
}

TEST(WrongSeedTable, NaNAgreesWithNoNumber) {
  SeedRow row;
  row.expected = {1};
  const std::vector<double> got{std::numeric_limits<double>::quiet_NaN()};
  const SeedReport report = compare_seed_row(row, got);
  EXPECT_EQ(report.disagreeing, 1);
  EXPECT_EQ(report.largest_difference, std::numeric_limits<double>::infinity());
}

std::string complaint_about(std::string_view table) {
  try {
    check_seed_numbers(table);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(WrongSeedTable, IsRefused) {
  EXPECT_EQ(complaint_about("000\t19\tq7\t1\t4\n"), "no seed expression 'q7'");
  EXPECT_EQ(complaint_about("000\t19\tq1[2]\t1\t4\n"), "no seed expression 'q1[2]'");
  EXPECT_EQ(complaint_about("# none\n"), "seed table:2: expected rows, got 'none'");
  EXPECT_EQ(complaint_about("# a\n000\t19\tq1\t1 1\n"),
            "seed table:2: expected 5 columns, got '4'");
  for (const std::string_view number : {"1x", "", "nan", "inf", "1e999", "1  1", "true"}) {
    EXPECT_NE(complaint_about("000\t1\tq1\t" + std::string(number) + "\t4\n").find("seed table:1"),
              std::string::npos)
        << number;
  }
  for (const std::string_view digits : {"-1", "13", "4.", ""}) {
    EXPECT_NE(
        complaint_about("000\t1\tq1\t1 1\t" + std::string(digits) + "\n").find(":1: expected"),
        std::string::npos)
        << digits;
  }
}

// ---- the drawn numbers ------------------------------------------------------------------------

// The table has no weights that document 002 drew (lines 75-85), except zeros. For any drawn
// scores, each row of weights must sum to 1 and be positive exactly up to its length.
TEST(DrawnWeights, SumToOne) {
  const std::vector<std::int64_t> lengths{2, 3};
  for (const double size : {0.5, 5.0, 500.0}) {
    Tensor x(DType::kFloat64, {2, 2, 4});
    double n = 0;
    for (double& value : x.values<double>()) value = size * std::sin(++n);
    Tensor weights(DType::kFloat64, x.shape());
    masked_softmax(x, lengths, weights);
    for (Index row = 0; row < 4; ++row) {
      double sum = 0;
      for (Index j = 0; j < 4; ++j) {
        const double weight = weights.view().at<double>({row / 2, row % 2, j});
        sum += weight;
        EXPECT_EQ(weight > 0, j < lengths[static_cast<std::size_t>(row / 2)]);
      }
      EXPECT_NEAR(sum, 1, 1e-15) << "scores of size " << size << ", row " << row;
    }
  }
}

}  // namespace
}  // namespace qkv::test
