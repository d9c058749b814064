// SPDX-License-Identifier: Apache-2.0
#include "files/line_reader.h"

#include <utility>

#include <qkv/app/file_error.h>

namespace qkv::files {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(InputFile& file, Progress progress) : blocks_(file, std::move(progress)) {}

void LineReader::fail(std::string_view detail) const {
  throw app::InputError::at_line(name(), number_, detail);
}

// Reads more bytes and looks for a NUL byte in them. A search in each line would cost as much
// as finding its end.
bool LineReader::more() {
  const std::size_t before = blocks_.rest().size();
  if (!blocks_.more()) return false;
  if (nul_ < 0) {
    const std::size_t nul = blocks_.rest().find('\0', before);
    if (nul != std::string_view::npos) nul_ = blocks_.position() + static_cast<Index>(nul);
  }
  return true;
}

// Looks for a NUL byte in all bytes that were read and not consumed.
void LineReader::find_nul() {
  const std::size_t nul = blocks_.rest().find('\0');
  nul_ = nul == std::string_view::npos ? -1 : blocks_.position() + static_cast<Index>(nul);
}

void LineReader::skip_rest_of_line() {
  std::size_t end = 0;
  while ((end = blocks_.rest().find('\n')) == std::string_view::npos) {
    blocks_.consume(blocks_.rest().size());
    if (!more()) break;
  }
  if (end != std::string_view::npos) blocks_.consume(end + 1);
  is_within_line_ = false;
  find_nul();
}

bool LineReader::next(std::string_view& line) {
  if (is_within_line_) skip_rest_of_line();
  std::size_t searched = 0;
  std::size_t end = 0;
  do {
    end = blocks_.rest().find('\n', searched);
    searched = blocks_.rest().size();
  } while (end == std::string_view::npos && more());
  const std::string_view rest = blocks_.rest();
  if (rest.empty()) return false;

  ++number_;
  if (end == rest.npos && !blocks_.ended()) {
    is_within_line_ = true;
    fail("expected a line of at most 1 MiB");
  }
  line = rest.substr(0, end);
  is_open_ = end == rest.npos;
  const bool has_nul = nul_ >= 0 && nul_ - blocks_.position() < static_cast<Index>(line.size());
  blocks_.consume(line.size() + (end == rest.npos ? 0 : 1));
  if (has_nul) {
    find_nul();
    fail("expected UTF-8 text, got a NUL byte (a binary file?)");
  }
  if (number_ == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

}  // namespace qkv::files
