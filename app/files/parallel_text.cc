// SPDX-License-Identifier: Apache-2.0
#include "files/parallel_text.h"

#include <algorithm>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "files/line_reader.h"

namespace qkv::app {
namespace {

// The number of columns that a row must have. Throws Error for invalid options.
Index needed_columns(const ParallelTextOptions& options) {
  if (options.least_columns < 1) throw Error("for_each_row", "least_columns", "must be positive");
  Index needed = options.least_columns;
  for (const Index column : options.columns) {
    if (column < 0) {
      throw Error("for_each_row", "columns", fmt::format("must not be negative, got {}", column));
    }
    if (column >= kMostColumns) {
      throw Error("for_each_row", "columns",
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

}  // namespace

void for_each_row(const std::string& path, const ParallelTextOptions& options,
                  const TakeRow& take) {
  const Index needed = needed_columns(options);
  files::InputFile file(path, options.stop);
  files::LineReader lines(file, options.progress);
  std::string_view line;
  std::vector<std::string_view> fields;
  std::vector<std::string_view> chosen;
  while (lines.next(line)) {
    if (line.empty() && options.empty_lines == EmptyLines::kSkipped) continue;
    if (line.empty() && options.empty_lines == EmptyLines::kRefused) {
      lines.fail(fmt::format("expected {} or more columns, got an empty line", needed));
    }
    if (const std::size_t bad = utf8_prefix(line); bad < line.size()) {
      lines.fail(fmt::format("expected UTF-8, got {} at byte {} of the line",
                             quoted(line.substr(bad, 1)), bad));
    }
    split(line, fields);
    const auto columns = static_cast<Index>(fields.size());
    if (columns < needed) {
      lines.fail(fmt::format("expected {} or more columns, got {}", needed, columns));
    }
    chosen.clear();
    for (const Index column : options.columns) {
      chosen.push_back(fields[static_cast<std::size_t>(column)]);
    }
    if (!take(options.columns.empty() ? fields : chosen, lines.number())) return;
  }
  if (lines.number() == 0 && options.empty_lines != EmptyLines::kKept) {
    throw InputError::at_line(
        lines.name(), 1, fmt::format("expected {} or more columns, got an empty file", needed));
  }
}

std::vector<std::vector<std::string>> read_parallel_text(const std::string& path,
                                                         const ParallelTextOptions& options) {
  std::vector<std::vector<std::string>> rows;
  for_each_row(path, options, [&](std::span<const std::string_view> fields, Index) {
    rows.emplace_back(fields.begin(), fields.end());
    return true;
  });
  return rows;
}

}  // namespace qkv::app
