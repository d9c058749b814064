// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_PARALLEL_TEXT_H_
#define QKV_APP_PARALLEL_TEXT_H_

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// An empty line is a mistake, nothing, or a row of one empty field. A file without any line is a
// mistake unless they are kept.
enum class EmptyLines { kRefused, kSkipped, kKept };

inline constexpr Index kMostColumns = Index{1} << 20;  // a line holds no more

struct ParallelTextOptions {
  std::vector<Index> columns{};  // those wanted in this order, below kMostColumns; none: all
  Index least_columns = 1;       // that every row has at least
  EmptyLines empty_lines = EmptyLines::kRefused;
  const std::atomic<bool>* stop = nullptr;  // read now and then; when true Cancelled is thrown
  // Told at most once per MiB: bytes read, and bytes in all or -1 where that is not known.
  std::function<void(Index bytes_read, Index bytes_total)> progress{};
};

// A row: its fields, good until the function returns, and its line in the file, from 1. Returning
// false ends the reading.
using TakeRow = std::function<bool(std::span<const std::string_view> fields, Index line)>;

// Reads text that belongs together, one row a line, its fields between tabs: sentences and their
// translations, say ("-": standard input). Fields are taken as they are; they may be empty and hold
// anything but tabs, line ends and zero bytes. UTF-8, with or without a byte order mark; lines may
// end in CR LF, the last needs no end. Rows are taken as they come, from a terminal or a pipe
// before more are there. Memory does not grow with the file. Throws InputError (with the line) for
// a file that is missing, is not UTF-8, or has a row with too few columns; Error for options that
// cannot be.
QKV_API void for_each_row(const std::string& path, const ParallelTextOptions& options,
                          const TakeRow& take);

// All rows at once.
QKV_API std::vector<std::vector<std::string>> read_parallel_text(
    const std::string& path, const ParallelTextOptions& options = {});

}  // namespace qkv::app

#endif  // QKV_APP_PARALLEL_TEXT_H_
