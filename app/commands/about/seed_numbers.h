// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_SEED_NUMBERS_H_
#define QKV_COMMANDS_ABOUT_SEED_NUMBERS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The comparison of the numbers printed in the four introductory documents (docs/seeds.md) with
// those that the library computes. tests/seed_numbers.tsv lists the printed numbers and explains
// its columns.

// A row of the table: the numbers printed at one place of a document.
struct SeedRow {
  int table_line = 0;
  std::string document;  // the document's number, "000"
  std::string line;      // the line or lines in the document, "66" or "75-79"
  std::string expression;
  std::vector<double> expected{};
  bool truth = false;  // whether `expected` is one truth value, 0 or 1
  int digits = 0;      // the number of decimals that are compared
};

// The outcome of comparing some or all rows.
struct SeedReport {
  int numbers = 0;  // numbers compared; truth values are compared but not counted
  // Numbers off by more than half a unit of the last decimal compared, wrong truth values, and all
  // numbers of a row with a wrong count of numbers.
  int disagreeing = 0;
  // The largest |got - expected|; infinite if a number is NaN or a row's count of numbers is wrong.
  double largest_difference = 0;
  // Text that names the number with the largest difference, among the disagreeing ones if there are
  // any, as computed and as printed; for a row with a wrong count of numbers, both counts.
  std::string worst;
  double worst_difference = largest_difference;
};

// The table as it was when the program was built.
std::string_view embedded_seed_table();

// Parses a table. Throws std::runtime_error, which names the line of the table, if a row is
// malformed or the table has no rows.
std::vector<SeedRow> read_seed_table(std::string_view table);

// Compares `got`, the numbers computed for a row, with the printed ones.
SeedReport compare_seed_row(const SeedRow& row, std::span<const double> got);

// Computes and compares every row of a table. Throws std::runtime_error for a malformed row, an
// unknown expression or a table without rows.
SeedReport check_seed_numbers(std::string_view table);

#endif  // QKV_COMMANDS_ABOUT_SEED_NUMBERS_H_
