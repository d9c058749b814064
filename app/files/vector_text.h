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
  // A line split in two: the word, which may contain blanks, and the text of its numbers.
  struct Cut {
    std::string_view word;
    std::vector<std::string_view> numbers;
  };

  // The file must outlive the reader. A `width` of 0 is taken from the header or, without one, from
  // the first line. next() parses the first `lines_to_confirm` lines to confirm the width.
  VectorText(InputFile& file, Index width, Index lines_to_confirm, Progress progress);

  // Gets the next line with a word, valid until the next call. Skips empty lines and the header.
  // Returns false at the end of the file, or throws InputError there if the header claimed another
  // number of words.
  bool next(std::string_view& line);
  Cut cut(std::string_view line) const;
  // Converts the numbers of a line. Throws InputError unless float32 can hold all of them. The
  // word must not end in a number with a decimal point: "cat 0.5" is not a word.
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
