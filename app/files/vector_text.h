// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_VECTOR_TEXT_H_
#define QKV_FILES_VECTOR_TEXT_H_

#include <optional>
#include <string_view>
#include <vector>

#include "files/line_reader.h"

// Word vectors as text: on each line a word and its numbers, separated by blanks or tabs.
namespace qkv::files {

// The optional first line of a file, "count width": the number of words, and of numbers per word.
struct VectorHeader {
  Index count = 0;
  Index width = 0;
};
std::optional<VectorHeader> parse_vector_header(std::string_view line);

// The text of a line before its first blank or tab.
std::string_view first_field(std::string_view line);

class VectorText {
 public:
  // The parts of a line: its word, which may contain blanks, and the text of each number.
  struct Cut {
    std::string_view word;
    std::vector<std::string_view> numbers;
  };

  // The file must outlive the reader. If `width` is 0, the width is the header's, or that of the
  // first word's line if there is no header. next() parses the first `lines_to_confirm` words'
  // lines to confirm the width.
  VectorText(InputFile& file, Index width, Index lines_to_confirm, Progress progress);

  // Gets the next line with a word, valid until the next call; skips blank lines and the header.
  // Returns false at the end of the file. Throws InputError for an empty file, a wrong header or
  // width, and at the end if the header claimed another number of words.
  bool next(std::string_view& line);
  // Splits a line. Throws InputError if it has fewer than width() numbers after its word.
  Cut cut(std::string_view line) const;
  // Converts the numbers of a line. Throws InputError for a field that is not a finite float32, and
  // for a word such as "cat 0.5": the line has a number too many.
  void parse(const Cut& line, std::vector<float>& numbers) const;

  Index width() const noexcept { return width_; }
  const std::optional<VectorHeader>& header() const noexcept { return header_; }
  const LineReader& lines() const noexcept { return lines_; }

 private:
  bool take_header(std::string_view line);
  void take_width_from(std::string_view line);
  void expect_all() const;

  LineReader lines_;
  Index width_;
  Index to_confirm_;
  std::optional<VectorHeader> header_{};
  Index given_ = 0;               // lines returned so far
  std::vector<float> numbers_{};  // memory for the lines parsed to confirm the width
};

}  // namespace qkv::files

#endif  // QKV_FILES_VECTOR_TEXT_H_
