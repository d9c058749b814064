// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_FILES_VECTOR_TEXT_H_
#define QKV_FILES_VECTOR_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/line_reader.h"

// Word vectors as text: on each line a word and its numbers, separated by blanks or tabs.
namespace qkv::files {

// "count width", the optional first line.
struct VectorHeader {
  Index count = 0;
  Index width = 0;
};
std::optional<VectorHeader> parse_vector_header(std::string_view line);

// The text before the first blank or tab.
std::string_view first_field(std::string_view line);

class VectorText {
 public:
  // A line split in two: the word, which may contain blanks, and the text of its numbers.
  struct Cut {
    std::string_view word;
    std::vector<std::string_view> numbers;
  };

  // The file must outlive this. `width` 0: from the header, else from the first line. That many
  // lines are parsed by next() to confirm it.
  VectorText(InputFile& file, Index width, Index lines_to_confirm, Progress progress);

  // The next line with a word, valid until the next call; false at the end. Skips empty lines and
  // the header. At the end, throws if the header claimed another number of words.
  bool next(std::string_view& line);
  Cut cut(std::string_view line) const;
  // Throws unless all are numbers that float32 can hold and none precedes them: "cat
  // 0.5" is not a word.
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
  Index given_ = 0;               // lines so far
  std::vector<float> numbers_{};  // of the lines parsed to confirm the width
};

}  // namespace qkv::files

#endif  // QKV_FILES_VECTOR_TEXT_H_
