// SPDX-License-Identifier: Apache-2.0
#include "files/block_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace qkv::files {

namespace {

// The size of the block in bytes: one more than a small file has, since a full block has
// no room for the read that detects the end. It has a minimum because files generated on reading
// (as in /proc) report size 0.
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
  const std::size_t got = file_.read_some(block_.data() + end_, block_.size() - end_);
  end_ += got;
  read_ += static_cast<Index>(got);
  ended_ = got == 0;
  tell_progress(got);
  return got > 0;
}

// Reports progress after each read if the file's size is known. A pipe delivers its bytes in small
// pieces, so its progress is reported about once per kBlock bytes and at the end.
void BlockReader::tell_progress(std::size_t got) {
  const bool is_due =
      file_.size() ? got > 0 : ended_ || read_ - told_ >= static_cast<Index>(kBlock);
  if (!progress_ || !is_due) return;
  told_ = read_;
  progress_(read_, file_.size().value_or(-1));
}

}  // namespace qkv::files
