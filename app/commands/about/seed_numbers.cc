// SPDX-License-Identifier: Apache-2.0
#include "commands/about/seed_numbers.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "commands/about/seed_expressions.h"

namespace {

// An allowance for float64 rounding at the magnitude of the documents' numbers.
constexpr double kRounding = 1e-12;

[[noreturn]] void refuse(int line, const std::string& rule, std::string_view got) {
  throw std::runtime_error("seed table:" + std::to_string(line) + ": expected " + rule + ", got '" +
                           std::string(got) + "'");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Parses the whole of `text` as a finite number.
template <class T>
T number_of(std::string_view text, int line, const std::string& rule) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(static_cast<double>(value))) {
    refuse(line, rule, text);
  }
  return value;
}

SeedRow read_row(std::string_view text, int line) {
  const std::vector<std::string_view> columns = split(text, '\t');
  if (columns.size() != 5) refuse(line, "5 columns", std::to_string(columns.size()));
  SeedRow row{line, std::string(columns[0]), std::string(columns[1]), std::string(columns[2])};
  if (row.document.empty() || row.expression.empty()) {
    refuse(line, "a document and an expression", text);
  }
  row.truth = columns[3] == "True" || columns[3] == "False";
  if (row.truth) {
    row.expected.push_back(columns[3] == "True" ? 1 : 0);
  } else {
    for (std::string_view one : split(columns[3], ' ')) {
      row.expected.push_back(number_of<double>(one, line, "numbers separated by one blank"));
    }
  }
  row.digits = number_of<int>(columns[4], line, "a number of decimals");
  if (row.digits < 0 || row.digits > 12) refuse(line, "0 to 12 decimals", columns[4]);
  return row;
}

std::string shown(double value) {
  char text[32];
  const auto result = std::to_chars(std::begin(text), std::end(text), value);
  return {std::begin(text), result.ptr};
}

std::string place(const SeedRow& row) {
  return row.document + ":" + row.line + " " + row.expression;
}

void add(SeedReport& total, const SeedReport& more) {
  const bool worse = (more.disagreeing > 0) != (total.disagreeing > 0)
                         ? more.disagreeing > 0
                         : more.worst_difference > total.worst_difference;
  if (worse || total.worst.empty()) {
    total.worst = more.worst;
    total.worst_difference = more.worst_difference;
  }
  total.numbers += more.numbers;
  total.disagreeing += more.disagreeing;
  total.largest_difference = std::fmax(total.largest_difference, more.largest_difference);
}

}  // namespace

std::vector<SeedRow> read_seed_table(std::string_view table) {
  std::vector<SeedRow> rows;
  int line = 0;
  for (std::string_view text : split(table, '\n')) {
    ++line;
    if (!text.empty() && text.front() != '#') rows.push_back(read_row(text, line));
  }
  if (rows.empty()) refuse(line, "rows", "none");
  return rows;
}

SeedReport compare_seed_row(const SeedRow& row, std::span<const double> got) {
  const int count = row.truth ? 0 : static_cast<int>(row.expected.size());
  if (got.size() != row.expected.size()) {
    return {count, static_cast<int>(row.expected.size()), std::numeric_limits<double>::infinity(),
            place(row) + ": got " + std::to_string(got.size()) + " numbers, printed " +
                std::to_string(row.expected.size())};
  }
  const double bound = 0.5 * std::pow(10.0, -row.digits) + kRounding;
  SeedReport report;
  for (std::size_t n = 0; n < got.size(); ++n) {
    const double distance = std::fabs(got[n] - row.expected[n]);
    const double difference =
        std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
    add(report, {0, difference <= bound ? 0 : 1, difference,
                 place(row) + " (number " + std::to_string(n + 1) + "): got " + shown(got[n]) +
                     ", printed " + shown(row.expected[n])});
  }
  report.numbers = count;
  return report;
}

SeedReport check_seed_numbers(std::string_view table) {
  SeedReport total;
  for (const SeedRow& row : read_seed_table(table)) {
    add(total, compare_seed_row(row, seed_values(row.expression)));
  }
  return total;
}
