// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_BLOCK_READER_H_
#define QKV_FILES_BLOCK_READER_H_

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "files/file.h"

namespace qkv::files {

// A callback that gets the bytes read so far and the bytes in total (-1 if unknown). It is called
// about once per block.
using Progress = std::function<void(Index bytes_read, Index bytes_total)>;

// Reads a file through one block, so that memory does not depend on the file's size.
class BlockReader {
 public:
  static constexpr std::size_t kBlock = std::size_t{1} << 20;  // bytes of the largest block

  // The file must outlive the reader. `progress` may be empty.
  explicit BlockReader(InputFile& file, Progress progress = {});

  // The bytes that have been read and not consumed; valid until more() is called.
  std::string_view rest() const noexcept { return {block_.data() + begin_, end_ - begin_}; }
  void consume(std::size_t bytes) noexcept { begin_ += bytes; }
  // Appends available bytes to rest(), as far as the block has room. Returns false if nothing was
  // added, because the file has ended or rest() fills the block.
  bool more();
  bool ended() const noexcept { return ended_; }
  // The file offset of rest()'s first byte.
  Index position() const noexcept { return read_ - static_cast<Index>(end_ - begin_); }
  const InputFile& file() const noexcept { return file_; }

 private:
  void tell_progress(std::size_t got);

  InputFile& file_;
  Progress progress_;
  std::vector<char> block_;
  std::size_t begin_ = 0;  // rest() is block_[begin_, end_)
  std::size_t end_ = 0;
  Index read_ = 0;
  Index told_ = 0;  // value of read_ at the last report
  bool ended_ = false;
};

}  // namespace qkv::files

#endif  // QKV_FILES_BLOCK_READER_H_
