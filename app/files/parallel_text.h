// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_PARALLEL_TEXT_H_
#define QKV_FILES_PARALLEL_TEXT_H_

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// How a blank line is treated: as an error, as no row, or as a row of one field. A blank line has
// no tab and nothing visible (is_blank()): it is empty, or has only white space and characters of
// no width. Blank lines at the end of a file that has a row are no error. A file without any line
// is an error unless blank lines are kept.
enum class EmptyLines { kRefused, kSkipped, kKept };

inline constexpr Index kMostColumns = Index{1} << 20;  // a line of at most 1 MiB has no more

struct ParallelTextOptions {
  // The columns to read, in this order, each below kMostColumns. An empty list reads all columns.
  std::vector<Index> columns{};
  Index least_columns = 1;  // the fewest columns that a row may have
  EmptyLines empty_lines = EmptyLines::kRefused;
  // Called with the error of each line that is left out since it is no row: blank, not UTF-8,
  // longer than 1 MiB, or with too few columns. If none is given, such an error is thrown.
  std::function<void(const InputError& error)> bad_line{};
  const std::atomic<bool>* stop = nullptr;  // polled; if set, Cancelled is thrown
  // Called about once per MiB with the bytes read so far and the bytes in total (-1 if unknown).
  std::function<void(Index bytes_read, Index bytes_total)> progress{};
};

// A function that takes a row: its fields, valid until the function returns, and its line in the
// file, from 1. If it returns false, reading stops.
using TakeRow = std::function<bool(std::span<const std::string_view> fields, Index line)>;

// Reads tab-separated text, such as sentence pairs, one row per line; the path "-" is standard
// input. Fields are taken verbatim; they may be empty and contain anything but tabs, line ends and
// zero bytes. The text is UTF-8, with or without a byte order mark; lines may end in CR LF, and the
// last needs no line end. A row from a terminal or a pipe is delivered before the next one arrives.
// Memory does not grow with the file. Throws InputError for a missing file and, with the line, for
// one that is not UTF-8 or has a row with too few columns; throws Error for invalid options.
QKV_API void for_each_row(const std::string& path, const ParallelTextOptions& options,
                          const TakeRow& take);

// Reads all rows into memory.
QKV_API std::vector<std::vector<std::string>> read_parallel_text(
    const std::string& path, const ParallelTextOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_FILES_PARALLEL_TEXT_H_
