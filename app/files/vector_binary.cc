// SPDX-License-Identifier: Apache-2.0
#include "files/vector_binary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>

namespace qkv::files {
namespace {

static_assert(std::endian::native == std::endian::little && sizeof(float) == 4,
              "numbers are read byte for byte");

constexpr std::size_t kWindow = std::size_t{1} << 16;  // bytes used to detect the format
// The most numbers in a vector and bytes in a word: a record must fit into a block.
constexpr Index kWidest = Index{1} << 17;
constexpr std::size_t kLongestWord = std::size_t{1} << 16;
static_assert(4 * kWidest + kLongestWord + 2 < BlockReader::kBlock);

// Whether the bytes can be the start of a UTF-8 character that is cut off.
bool is_cut_short(std::string_view bytes) {
  const auto is_inner = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; };
  return bytes.size() < 4 && !is_inner(bytes[0]) &&
         std::all_of(bytes.begin() + 1, bytes.end(), is_inner);
}

// Whether the bytes are not UTF-8 text. A character that is cut off at the end is accepted.
bool is_no_text(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::string_view rest = bytes.substr(at);
    const auto c = app::next_code_point(bytes, at);
    if (!c) return !is_cut_short(rest);
    if (*c < 0x20 && *c != '\t' && *c != '\n' && *c != '\r') return true;
  }
  return false;
}

}  // namespace

bool is_vector_binary(InputFile& file) {
  const std::string_view head = file.peek(kWindow);
  const std::size_t end = head.find('\n');
  const auto header = end == head.npos ? std::nullopt : parse_vector_header(head.substr(0, end));
  if (!header) return false;
  const std::size_t blank = head.find(' ', end + 1);
  if (blank == head.npos) return false;
  const auto width = static_cast<std::size_t>(std::min(header->width, kWidest));
  return is_no_text(head.substr(blank + 1, 4 * width));
}

VectorBinary::VectorBinary(InputFile& file, Index width, Progress progress)
    : blocks_(file, std::move(progress)) {
  read_header(width);
}

void VectorBinary::fail(Index byte, std::string_view detail) const {
  throw app::InputError::at_byte(blocks_.file().name(), byte, detail);
}

void VectorBinary::read_header(Index width) {
  blocks_.more();
  const std::string_view line = blocks_.rest().substr(0, blocks_.rest().find('\n'));
  header_ = parse_vector_header(line).value_or(VectorHeader{});
  if (header_.width < 1 || header_.width > kWidest) {
    fail(0, fmt::format("expected a count and a width of 1 to {}, got {}", kWidest,
                        app::quoted(line)));
  }
  if (width != 0 && width != header_.width) {
    fail(0, fmt::format("expected vectors of width {}, got a header that says {}", width,
                        header_.width));
  }
  blocks_.consume(line.size() + 1);
  const auto size = blocks_.file().size();
  const Index least = 4 * header_.width + 2;  // bytes of the smallest record
  const Index most = size ? (*size - blocks_.position()) / least : header_.count;
  Index bytes = 0;
  if (header_.count > most && !__builtin_mul_overflow(header_.count, least, &bytes)) {
    fail(0, fmt::format("{}expected at least {} bytes of {} words (width {}), got {}", kTruncated,
                        bytes, header_.count, header_.width, *size - blocks_.position()));
  }
  if (header_.count > most) {
    fail(0, fmt::format("expected a word count of at most {} (width {}) in {} bytes, got {}", most,
                        header_.width, *size, header_.count));
  }
}

bool VectorBinary::next(Record& record) {
  blocks_.consume(std::exchange(to_consume_, 0));
  if (given_ == header_.count) {
    expect_end();
    return false;
  }
  const auto bytes = static_cast<std::size_t>(4 * header_.width);
  // Whether the block holds all of the record whose word ends at `blank`, plus one more byte.
  const auto complete = [&](std::size_t blank) {
    return blank != std::string_view::npos && blocks_.rest().size() > blank + 1 + bytes;
  };
  std::size_t blank = blocks_.rest().find(' ');
  while (!complete(blank) && blocks_.more()) blank = blocks_.rest().find(' ');

  const std::string_view rest = blocks_.rest();
  const std::size_t start = rest.starts_with('\n') ? 1 : 0;  // the end of the previous record
  if (blank == rest.npos || blank - start > kLongestWord || blank <= start) {
    const bool is_cut = blank == rest.npos && blocks_.ended();
    fail(blocks_.position(),
         fmt::format("{}expected word {} of {} and a space, got {}", is_cut ? kTruncated : "",
                     given_ + 1, header_.count,
                     rest.empty() ? "the end" : app::quoted(rest.substr(0, 80), 20)));
  }
  record.word = rest.substr(start, blank - start);
  record.numbers = rest.substr(blank + 1, bytes);
  record.byte = blocks_.position() + static_cast<Index>(blank) + 1;
  if (record.numbers.size() < bytes) {
    fail(record.byte, fmt::format("{}expected {} bytes of numbers after {}, got {}", kTruncated,
                                  bytes, app::quoted(record.word), record.numbers.size()));
  }
  to_consume_ = blank + 1 + bytes;
  ++given_;
  return true;
}

// Throws InputError unless the file ends here. One newline may follow the last record.
void VectorBinary::expect_end() {
  while (blocks_.rest().size() < 2 && blocks_.more()) {
  }
  const std::string_view rest = blocks_.rest();
  if (rest.empty() || rest == "\n") return;
  fail(blocks_.position(), fmt::format("expected the end after word {}, got {}", header_.count,
                                       app::quoted(rest.substr(0, 80), 20)));
}

void VectorBinary::parse(const Record& record, std::vector<float>& numbers) const {
  numbers.resize(record.numbers.size() / sizeof(float));
  std::memcpy(numbers.data(), record.numbers.data(), record.numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (std::isfinite(numbers[i])) continue;
    fail(record.byte + static_cast<Index>(4 * i),
         fmt::format("expected finite numbers after {}, got {} as number {}",
                     app::quoted(record.word), numbers[i], i + 1));
  }
}

}  // namespace qkv::files
