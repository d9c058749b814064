// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_IO_LINE_READER_H_
#define QKV_IO_LINE_READER_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace qkv::io {

// The lines of a text file, read in blocks of 1 MiB; no line may be longer. Line ends, CR before
// them and a byte order mark are taken off; the last line needs no end. A NUL byte is an
// InputError: such a file is no text. The flag is InputFile's.
class LineReader {
 public:
  LineReader(const std::string& path, const std::atomic<bool>* stop);

  // The next line, good until the next call; false at the end.
  bool next(std::string_view& line);
  // Of the line that next() gave, from 1.
  Index number() const noexcept { return number_; }
  const std::string& name() const noexcept { return file_.name(); }
  [[noreturn]] void fail(std::string_view detail) const;

 private:
  bool fill();

  InputFile file_;
  std::vector<char> block_;
  std::size_t begin_ = 0;  // block_[begin_, end_) is yet to be given
  std::size_t end_ = 0;
  bool ended_ = false;
  Index number_ = 0;
};

}  // namespace qkv::io

#endif  // QKV_IO_LINE_READER_H_
