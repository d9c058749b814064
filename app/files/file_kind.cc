// SPDX-License-Identifier: Apache-2.0
#include "files/file_kind.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "files/array_formats.h"
#include "files/file.h"
#include "files/vector_binary.h"
#include "files/vector_text.h"
#include "text/numbers.h"

namespace qkv::app {
namespace {

constexpr std::size_t kWindow = std::size_t{1} << 16;  // bytes of a file that decide its kind
constexpr std::size_t kLongestCharacter = 4;           // bytes

// A common file type that is not read: the bytes that it begins with and its name in messages.
struct Foreign {
  std::string_view begin;
  std::string_view name;
};
constexpr Foreign kForeign[] = {
    {"\x89PNG", "a PNG picture"},
    {"\xFF\xD8\xFF", "a JPEG picture"},
    {"GIF8", "a GIF picture"},
    {"%PDF", "a PDF document"},
    {"<svg", "an SVG picture"},
    {"<?xml", "an XML document (an SVG picture?)"},
    {"\x1F\x8B", "a gzip file: unpack it first"},
    {"BZh", "a bzip2 file: unpack it first"},
    {"\xFD"
     "7zXZ",
     "an xz file: unpack it first"},
    {"\x28\xB5\x2F\xFD", "a zstd file: unpack it first"},
    {"\x89HDF", "an HDF5 file"},
    {"\x80\x02", "a Python pickle: save arrays with numpy.savez"},
    {"\x80\x03", "a Python pickle: save arrays with numpy.savez"},
    {"\x80\x04", "a Python pickle: save arrays with numpy.savez"},
    {"\x80\x05", "a Python pickle: save arrays with numpy.savez"},
    {"\x7F"
     "ELF",
     "a program"},
};

// Returns the offset of the first bytes that are not text, or none. Bytes that fill the window may
// end in the middle of a character.
std::optional<std::size_t> end_of_text(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t here = at;
    const auto letter = next_code_point(bytes, at);
    const bool cut = !letter && bytes.size() == kWindow && bytes.size() - here < kLongestCharacter;
    if (cut) return std::nullopt;
    if (!letter || *letter == 0) return here;
  }
  return std::nullopt;
}

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Counts the numbers at the end of a line. Its first field, which is a word, is not counted.
Index count_numbers(std::string_view line) {
  constexpr std::string_view kBlanks = " \t";
  Index count = 0;
  while (!line.empty()) {
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    const std::size_t blank = line.find_last_of(kBlanks);
    if (blank == line.npos) return count;
    if (!parse_number<double>(line.substr(blank + 1))) break;
    ++count;
    line.remove_suffix(line.size() - blank);
  }
  return count;
}

// Whether a text begins with a line of a word and at least two numbers, or with a header and a line
// of a word and at least as many numbers as the header's width. A file with a malformed first line
// is not recognised.
bool is_vector_text(std::string_view head) {
  const std::string_view first = take_line(head);
  if (const auto header = files::parse_vector_header(first)) {
    return count_numbers(take_line(head)) >= header->width;
  }
  return count_numbers(first) >= 2;
}

// Counts the numbers in a line; 0 if the line contains anything else.
Index only_numbers(std::string_view line) {
  constexpr std::string_view kBlanks = " \t";
  Index count = 0;
  for (;; ++count) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return count;
    const std::size_t end = std::min(line.find_first_of(kBlanks), line.size());
    if (!parse_number<double>(line.substr(0, end))) return 0;
    line.remove_prefix(end);
  }
}

// Whether all lines that are not empty, up to the one that the window cuts off, consist of two or
// more numbers. A file that begins with a header and a line of its width is not a table: it holds
// word vectors whose first words are numbers. Word vectors without a header are recognised by a
// nonnumeric word.
bool is_number_table(std::string_view head) {
  const bool cut = head.size() + kLongestCharacter > kWindow;
  Index rows = 0;
  std::string_view rest = head;
  while (!rest.empty()) {
    const bool whole = !cut || rest.find('\n') != rest.npos;
    const std::string_view line = take_line(rest);
    if (!whole && rows > 0) break;
    if (line.empty()) continue;
    if (only_numbers(line) < 2) return false;
    ++rows;
  }
  const auto header = files::parse_vector_header(take_line(head));
  return rows > 0 && !(header && rows > 1 && only_numbers(take_line(head)) == header->width + 1);
}

FileKind array_kind(ArrayFormat format) {
  switch (format) {
    case ArrayFormat::kNpy:
      return FileKind::kNpy;
    case ArrayFormat::kNpz:
      return FileKind::kNpz;
    case ArrayFormat::kSafetensors:
      break;
  }
  return FileKind::kSafetensors;
}

[[noreturn]] void refuse(const std::string& file, std::string_view head) {
  const auto foreign =
      std::find_if(std::begin(kForeign), std::end(kForeign),
                   [head](const Foreign& one) { return head.starts_with(one.begin); });
  const std::string got = head.empty()                    ? "an empty file"
                          : foreign != std::end(kForeign) ? std::string(foreign->name)
                                                          : quoted(head.substr(0, 8));
  throw InputError::at_byte(file, 0,
                            fmt::format("expected arrays ({}), word vectors or UTF-8 text, got {}",
                                        files::array_extensions(), got));
}

}  // namespace

const char* describe(FileKind kind) noexcept {
  switch (kind) {
    case FileKind::kNpy:
      return "a .npy file";
    case FileKind::kNpz:
      return "an .npz file";
    case FileKind::kSafetensors:
      return "a .safetensors file";
    case FileKind::kWordVectors:
      return "word vectors";
    case FileKind::kColumns:
      return "text in columns";
    case FileKind::kText:
      return "text";
    case FileKind::kNumbers:
      return "a table of numbers";
  }
  return "";
}

FileKind file_kind(const std::string& path, const std::atomic<bool>* stop) {
  files::InputFile file(path, stop);
  std::string_view head = file.peek(kWindow);
  if (const auto arrays = files::claimed_format(head.substr(0, files::kArrayFileHead))) {
    return array_kind(*arrays);
  }
  if (files::is_vector_binary(file)) return FileKind::kWordVectors;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view text = head;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const bool foreign = std::any_of(std::begin(kForeign), std::end(kForeign),
                                   [text](const auto& f) { return text.starts_with(f.begin); });
  if (text.empty() || foreign || end_of_text(head)) refuse(file.name(), foreign ? text : head);
  if (is_number_table(text)) return FileKind::kNumbers;
  if (is_vector_text(text)) return FileKind::kWordVectors;
  return take_line(text).find('\t') != text.npos ? FileKind::kColumns : FileKind::kText;
}

}  // namespace qkv::app
