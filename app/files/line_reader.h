// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_LINE_READER_H_
#define QKV_FILES_LINE_READER_H_

#include <string>
#include <string_view>

#include "files/block_reader.h"
#include "files/file.h"

namespace qkv::files {

// Reads the lines of a text file. Line ends (LF or CR LF) and a byte order mark are stripped; the
// last line needs no line end. Throws InputError for a line that fills a block, and for a NUL byte,
// since such a file is not text. After an error, next() goes on with the line after the bad one.
class LineReader {
 public:
  // The file must outlive the reader.
  explicit LineReader(InputFile& file, Progress progress = {});

  // Gets the next line, valid until the next call. Returns false at the end of the file.
  bool next(std::string_view& line);
  // The number of the line that next() returned last, from 1.
  Index number() const noexcept { return number_; }
  // Whether the line that next() returned last ended with the file, without a line end.
  bool is_open() const noexcept { return is_open_; }
  const std::string& name() const noexcept { return blocks_.file().name(); }
  [[noreturn]] void fail(std::string_view detail) const;

 private:
  bool more();
  void find_nul();
  void skip_rest_of_line();

  BlockReader blocks_;
  Index nul_ = -1;  // file offset of the first NUL byte that was read and not consumed; -1 for none
  Index number_ = 0;
  bool is_open_ = false;
  bool is_within_line_ = false;  // true after the error of a line that fills a block
};

}  // namespace qkv::files

#endif  // QKV_FILES_LINE_READER_H_
