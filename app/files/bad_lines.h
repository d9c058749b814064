// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_BAD_LINES_H_
#define QKV_FILES_BAD_LINES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/app/file_error.h>
#include <qkv/export.h>

namespace qkv::app {

// Numbers of lines for a message; they are added in any order.
class QKV_API LineNumbers {
 public:
  void add(Index line);
  Index count() const noexcept { return count_; }
  Index lowest() const { return first_.front(); }
  // The lowest 20 numbers: "3, 17", or "3, 17 and 5 more" if there are more.
  std::string text() const;

 private:
  static constexpr std::size_t kMost = 20;

  Index count_ = 0;
  std::vector<Index> first_{};  // the lowest numbers, ascending
};

// Returns the error with a hint at the option --skip-bad, which would leave its line out.
QKV_API InputError with_skip_bad(const InputError& error);

// The lines of a file that could not be used and were left out.
class QKV_API BadLines {
 public:
  void add(const InputError& error);
  Index count() const noexcept { return numbers_.count(); }
  // A summary such as "2 of 90 lines skipped: 3, 17; the first: expected 2 or more columns, got 1".
  // `lines` is the number of lines in the file, `fate` what was done with the bad ones.
  std::string summary(Index lines, std::string_view fate) const;

 private:
  LineNumbers numbers_{};
  std::string reason_{};  // the detail of the first bad line's error
};

}  // namespace qkv::app

#endif  // QKV_FILES_BAD_LINES_H_
