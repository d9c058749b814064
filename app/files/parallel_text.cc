// SPDX-License-Identifier: Apache-2.0
#include "files/parallel_text.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "files/line_reader.h"
#include "text/text.h"

namespace qkv::app {
namespace {

// The number of columns that a row must have. Throws Error naming `function` for invalid options.
Index needed_columns(const char* function, const ParallelTextOptions& options) {
  if (options.least_columns < 1) {
    throw Error(function, "least_columns",
                fmt::format("must be positive, got {}", options.least_columns));
  }
  Index needed = options.least_columns;
  for (const Index column : options.columns) {
    if (column < 0) {
      throw Error(function, "columns", fmt::format("must not be negative, got {}", column));
    }
    if (column >= kMostColumns) {
      throw Error(function, "columns",
                  fmt::format("must be below {}, got {}", kMostColumns, column));
    }
    needed = std::max(needed, column + 1);
  }
  return needed;
}

void split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (std::size_t tab = line.find('\t'); tab != line.npos; tab = line.find('\t')) {
    fields.push_back(line.substr(0, tab));
    line.remove_prefix(tab + 1);
  }
  fields.push_back(line);
}

// Whether a line of valid UTF-8 has no tab and nothing visible.
bool is_blank_line(std::string_view line) {
  if (line.empty()) return true;
  const bool begins_visibly = line[0] > ' ' && line[0] < '\x7F';
  return !begins_visibly && line.find('\t') == line.npos && is_blank(line);
}

// Reads the rows of a file. A line that is not a row is an error, or left out if the options say
// so.
class RowReader {
 public:
  // `needed` is the number of columns that a row must have.
  RowReader(files::InputFile& file, const ParallelTextOptions& options, Index needed)
      : lines_(file, options.progress), options_(options), needed_(needed) {}

  // Gets the fields of the next row, valid until the next call. Returns false at the end of the
  // file.
  bool next(std::vector<std::string_view>& fields) {
    std::string_view line;
    while (next_line(line)) {
      if (const std::size_t bad = utf8_prefix(line); bad < line.size()) {
        leave_out(fmt::format("expected UTF-8, got {} at byte {} of the line",
                              quoted(line.substr(bad, 1)), bad));
        continue;
      }
      if (options_.empty_lines != EmptyLines::kKept && is_blank_line(line)) {
        if (options_.empty_lines == EmptyLines::kRefused) hold_blank();
        continue;
      }
      report_blanks();
      split(line, fields);
      const auto columns = static_cast<Index>(fields.size());
      if (columns >= needed_) {
        has_row_ = true;
        return true;
      }
      leave_out(expected(fmt::format("{}; tabs separate columns", columns)));
    }
    finish();
    return false;
  }
  Index number() const { return lines_.number(); }

 private:
  std::string expected(std::string_view got) const {
    return fmt::format("expected {} or more columns, got {}", needed_, got);
  }

  bool next_line(std::string_view& line) {
    for (;;) {
      try {
        return lines_.next(line);
      } catch (const InputError& error) {
        if (error.line() == 0) throw;  // an error without a line: reading has failed
        report_blanks();
        report(error);
      }
    }
  }

  // Blank lines are reported only if a line follows that is not blank, or if the file has no row.
  void hold_blank() {
    if (last_blank_ == 0) first_blank_ = number();
    last_blank_ = number();
  }
  void report_blanks() {
    const Index last = std::exchange(last_blank_, 0);
    if (last == 0) return;
    for (Index line = first_blank_; line <= last; ++line) {
      report(InputError::at_line(lines_.name(), line, expected("a blank line")));
    }
  }
  void leave_out(std::string_view detail) {
    report_blanks();
    report(InputError::at_line(lines_.name(), number(), detail));
  }
  void report(const InputError& error) const {
    if (!options_.bad_line) throw error;
    options_.bad_line(error);
  }

  // A file of blank lines alone is as wrong as an empty one.
  void finish() {
    if (options_.empty_lines == EmptyLines::kRefused && !has_row_) report_blanks();
    if (number() > 0 || options_.empty_lines == EmptyLines::kKept) return;
    throw InputError::at_line(lines_.name(), 1, expected("an empty file"));
  }

  files::LineReader lines_;
  const ParallelTextOptions& options_;
  Index needed_;
  bool has_row_ = false;
  // The numbers of the first and last blank lines not reported yet; last_blank_ is 0 if none.
  Index first_blank_ = 0;
  Index last_blank_ = 0;
};

// Does the work of for_each_row(); errors name `function`.
void read_rows(const char* function, const std::string& path, const ParallelTextOptions& options,
               const TakeRow& take) {
  const Index needed = needed_columns(function, options);  // before the file is opened
  files::InputFile file(path, options.stop);
  RowReader rows(file, options, needed);
  std::vector<std::string_view> fields;
  std::vector<std::string_view> chosen;
  while (rows.next(fields)) {
    chosen.clear();
    for (const Index column : options.columns) {
      chosen.push_back(fields[static_cast<std::size_t>(column)]);
    }
    if (!take(options.columns.empty() ? fields : chosen, rows.number())) return;
  }
}

}  // namespace

void for_each_row(const std::string& path, const ParallelTextOptions& options,
                  const TakeRow& take) {
  read_rows("for_each_row", path, options, take);
}

std::vector<std::vector<std::string>> read_parallel_text(const std::string& path,
                                                         const ParallelTextOptions& options) {
  std::vector<std::vector<std::string>> rows;
  read_rows("read_parallel_text", path, options,
            [&](std::span<const std::string_view> fields, Index) {
              rows.emplace_back(fields.begin(), fields.end());
              return true;
            });
  return rows;
}

}  // namespace qkv::app
