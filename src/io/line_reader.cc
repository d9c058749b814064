// SPDX-License-Identifier: Apache-2.0
#include "io/line_reader.h"

#include <cstring>

#include <qkv/app/file_error.h>

namespace qkv::io {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(const std::string& path, const std::atomic<bool>* stop)
    : file_(path, stop), block_(kBlock) {}

void LineReader::fail(std::string_view detail) const {
  throw app::InputError::at_line(name(), number_, detail);
}

// Moves the rest of the block to its front and reads on behind it; false when no more comes.
bool LineReader::fill() {
  if (ended_) return false;
  std::memmove(block_.data(), block_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const std::size_t got = file_.read(block_.data() + end_, block_.size() - end_);
  end_ += got;
  ended_ = end_ < block_.size();
  return got > 0;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;
  const char* end = nullptr;
  do {
    const std::size_t rest = end_ - begin_;
    end = static_cast<const char*>(
        std::memchr(block_.data() + begin_ + searched, '\n', rest - searched));
    searched = rest;
  } while (end == nullptr && fill());
  if (end == nullptr && begin_ == end_) return false;

  ++number_;
  const char* begin = block_.data() + begin_;
  if (end == nullptr && !ended_) fail("expected a line of at most 1 MiB");
  const bool last = end == nullptr;
  if (last) end = block_.data() + end_;
  line = std::string_view(begin, static_cast<std::size_t>(end - begin));
  begin_ += line.size() + (last ? 0 : 1);
  if (number_ == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.find('\0') != std::string_view::npos) {
    fail("expected UTF-8 text, got a NUL byte (a binary file?)");
  }
  return true;
}

}  // namespace qkv::io
