// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_LINE_READER_H_
#define QKV_FILES_LINE_READER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "files/block_reader.h"
#include "files/file.h"

namespace qkv::files {

// The lines of a text file, none longer than a block. Line ends, with a CR before them, and a byte
// order mark are stripped; the last line needs no end. A NUL byte is an InputError: such a file is
// not text.
class LineReader {
 public:
  // The file must outlive this.
  explicit LineReader(InputFile& file, Progress progress = {});

  // The next line, valid until the next call; false at the end.
  bool next(std::string_view& line);
  // The number of next()'s line, from 1.
  Index number() const noexcept { return number_; }
  const std::string& name() const noexcept { return blocks_.file().name(); }
  [[noreturn]] void fail(std::string_view detail) const;

 private:
  bool more();

  BlockReader blocks_;
  Index nul_ = -1;  // file offset of the first NUL byte read; -1: none
  Index number_ = 0;
};

}  // namespace qkv::files

#endif  // QKV_FILES_LINE_READER_H_
