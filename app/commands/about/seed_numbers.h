// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_SEED_NUMBERS_H_
#define QKV_COMMANDS_ABOUT_SEED_NUMBERS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The numbers printed in the four documents that this library grew from, recomputed with it
// and compared. tests/seed_numbers.tsv lists them and explains its columns at the top.

struct SeedRow {
  int table_line = 0;
  std::string document;  // "000"
  std::string line;      // "66", "75-79"
  std::string expression;
  std::vector<double> expected{};
  bool truth = false;  // expected is one truth value, 0 or 1
  int digits = 0;      // decimals compared
};

struct SeedReport {
  int numbers = 0;                // compared; truth values are compared but not counted
  int disagreeing = 0;            // numbers and truth values beyond half a unit of the last decimal
  double largest_difference = 0;  // |got - expected|; infinite when a number is NaN or missing
  std::string worst;              // where: one that disagrees, if any, else the largest difference
};

// The table as of when the program was built.
std::string_view embedded_seed_table();

// Throws std::runtime_error naming the line of the table when a row is malformed or the table is
// empty.
std::vector<SeedRow> read_seed_table(std::string_view table);

// Compares the numbers computed for a row with the printed ones.
SeedReport compare_seed_row(const SeedRow& row, std::span<const double> got);

// Computes and compares every row. Throws std::runtime_error for a malformed row or an expression
// that does not exist.
SeedReport check_seed_numbers(std::string_view table);

#endif  // QKV_COMMANDS_ABOUT_SEED_NUMBERS_H_
