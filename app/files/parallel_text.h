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

// An empty line is an error, ignored, or a row of one empty field. A file without any line is an
// error unless empty lines are kept.
enum class EmptyLines { kRefused, kSkipped, kKept };

inline constexpr Index kMostColumns = Index{1} << 20;  // a line holds no more

struct ParallelTextOptions {
  std::vector<Index>
      columns{};            // the columns to read, in this order, below kMostColumns; none: all
  Index least_columns = 1;  // that every row must have
  EmptyLines empty_lines = EmptyLines::kRefused;
  const std::atomic<bool>* stop = nullptr;  // polled; if set, Cancelled is thrown
  // Called at most once per MiB with bytes read and bytes in total, or -1 if unknown.
  std::function<void(Index bytes_read, Index bytes_total)> progress{};
};

// A row: its fields, valid until the function returns, and its line in the file, from 1. Returning
// false stops reading.
using TakeRow = std::function<bool(std::span<const std::string_view> fields, Index line)>;

// Reads tab-separated text, one row per line: sentences and their
// translations, say ("-": standard input). Fields are taken verbatim; they may be empty and contain
// anything but tabs, line ends and zero bytes. UTF-8, with or without a byte order mark; lines may
// end in CR LF, the last needs no end. Rows are delivered as they arrive, from a terminal or a pipe
// before more are available. Memory does not grow with the file. Throws InputError (with the line)
// for a file that is missing, is not UTF-8, or has a row with too few columns; Error for invalid
// options.
QKV_API void for_each_row(const std::string& path, const ParallelTextOptions& options,
                          const TakeRow& take);

// All rows at once.
QKV_API std::vector<std::vector<std::string>> read_parallel_text(
    const std::string& path, const ParallelTextOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_FILES_PARALLEL_TEXT_H_
