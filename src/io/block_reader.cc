// SPDX-License-Identifier: Apache-2.0
#include "io/block_reader.h"

#include <cstring>
#include <utility>

namespace qkv::io {

BlockReader::BlockReader(InputFile& file, Progress progress)
    : file_(file), progress_(std::move(progress)), block_(kBlock) {}

bool BlockReader::more() {
  if (ended_) return false;
  std::memmove(block_.data(), block_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == block_.size()) return false;
  const std::size_t got = file_.read(block_.data() + end_, block_.size() - end_);
  end_ += got;
  read_ += static_cast<Index>(got);
  ended_ = end_ < block_.size();
  if (progress_) progress_(read_, file_.size().value_or(-1));
  return got > 0;
}

}  // namespace qkv::io
