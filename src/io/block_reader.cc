// SPDX-License-Identifier: Apache-2.0
#include "io/block_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace qkv::io {

namespace {

// One byte more than a small file has: a block that is not full tells that the file has ended.
// Files that the system makes up as they are read say that they are empty.
std::size_t block_size(const InputFile& file) {
  constexpr auto kMost = static_cast<Index>(BlockReader::kBlock);
  constexpr Index kLeast = 4096;
  return static_cast<std::size_t>(std::clamp(file.size().value_or(kMost), kLeast, kMost - 1) + 1);
}

}  // namespace

BlockReader::BlockReader(InputFile& file, Progress progress)
    : file_(file), progress_(std::move(progress)), block_(block_size(file)) {}

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
