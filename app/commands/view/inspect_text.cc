// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <ranges>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>

#include "commands/shell/console.h"
#include "commands/shell/json_values.h"
#include "commands/shell/options.h"
#include "commands/view/inspect.h"
#include "files/parallel_text.h"
#include "text/text.h"

namespace {

using qkv::Index;
using qkv::app::VectorFileSummary;
using qkv::app::VectorFormat;

constexpr Choice<VectorFormat> kVectorFormats[] = {
    {"text", VectorFormat::kText},
    {"text with a header", VectorFormat::kTextWithHeader},
    {"word2vec binary", VectorFormat::kBinary}};

std::string_view name_of(VectorFormat format) {
  return kVectorFormats[static_cast<std::size_t>(format)].name;
}

// A summary of tab-separated text. A row is a line that is not blank.
struct TextRows {
  Index rows = 0;
  Index lines = 0;   // rows, and the blank lines before the last row
  Index fewest = 0;  // the least number of columns of a row
  Index most = 0;
  Index differing_line = 0;  // first line with more or fewer columns than the first row; 0: none
  int widest = 0;            // the width of the widest row on a terminal
  std::vector<std::string> first{};  // the fields of the first row
};

TextRows read_rows(const std::string& path) {
  TextRows result;
  qkv::app::for_each_row(
      path, {.empty_lines = qkv::app::EmptyLines::kSkipped, .stop = &stop_flag()},
      [&](std::span<const std::string_view> fields, Index line) {
        const auto columns = static_cast<Index>(fields.size());
        if (result.rows++ == 0) {
          result.fewest = result.most = columns;
          result.first.assign(fields.begin(), fields.end());
        }
        if (result.differing_line == 0 && columns != static_cast<Index>(result.first.size())) {
          result.differing_line = line;
        }
        result.fewest = std::min(result.fewest, columns);
        result.most = std::max(result.most, columns);
        int width = static_cast<int>(fields.size()) - 1;
        for (const std::string_view field : fields) width += qkv::app::display_width(field);
        result.widest = std::max(result.widest, width);
        result.lines = line;
        return true;
      });
  return result;
}

struct Place {
  std::string file;
  Index line;
};

// Counts the numbers, NaN and infinity included, in a field that may hold several, separated by
// blanks. Throws InputError for anything else.
Index count_numbers(std::string_view field, const Place& place) {
  Index count = 0;
  for (const auto part : std::views::split(field, ' ')) {
    if (part.empty()) continue;
    const std::string_view text(part.begin(), part.end());
    double number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    if (read.ec == std::errc::invalid_argument || read.ptr != text.data() + text.size()) {
      throw qkv::app::InputError::at_line(place.file, place.line,
                                          "expected a number, got " + qkv::app::quoted(text, 20));
    }
    ++count;
  }
  return count;
}

}  // namespace

Inspection inspect_vectors(const std::string& path) {
  const VectorFileSummary file = qkv::app::check_word_vectors(path, {.stop = &stop_flag()});
  Inspection result;
  std::string words;
  for (const std::string& word : file.first_words) words += " " + qkv::app::quoted(word, 20);
  result.text = fmt::format("{}: word vectors ({}): words {}, width {}, every line read\n",
                            shown_name(path), name_of(file.format), file.count, file.width);
  result.text +=
      fmt::format("  numbers {:.6g} to {:.6g}; words with spaces {}, invalid UTF-8 {}",
                  file.smallest, file.largest, file.words_with_blanks, file.words_not_utf8);
  if (file.repeated) result.text += fmt::format(", repeated {}", *file.repeated);
  result.text += fmt::format("\n  first:{}\n", words);
  if (path != "-") {
    result.text += fmt::format("  try: qkv words \"some words\" --vectors {}\n", typed(path));
  }
  result.json["kind"] = "word vectors";
  result.json["format"] = name_of(file.format);
  result.json["words"] = file.count;
  result.json["width"] = file.width;
  result.json["min"] = file.smallest;
  result.json["max"] = file.largest;
  result.json["words_with_blanks"] = file.words_with_blanks;
  result.json["words_not_utf8"] = file.words_not_utf8;
  if (file.repeated) result.json["repeated"] = *file.repeated;
  result.json["first"] = file.first_words;
  return result;
}

Inspection inspect_columns(const std::string& path) {
  const TextRows rows = read_rows(path);
  Inspection result;
  result.text = fmt::format("{}: text in columns: rows {}, columns ", shown_name(path), rows.rows);
  result.text += rows.fewest == rows.most
                     ? fmt::format("{}\n", rows.most)
                     : fmt::format("{} to {} (line {} is the first to differ)\n", rows.fewest,
                                   rows.most, rows.differing_line);
  std::string first;
  for (const std::string& field : rows.first) first += " " + qkv::app::quoted(field);
  result.text += fmt::format("  first row:{}\n", first);
  result.json["kind"] = "columns";
  result.json["rows"] = rows.rows;
  result.json["columns"] = {rows.fewest, rows.most};
  result.json["first"] = rows.first;
  return result;
}

Inspection inspect_numbers(const std::string& path) {
  Index rows = 0;
  Index fewest = 0;
  Index most = 0;
  qkv::app::for_each_row(path,
                         {.empty_lines = qkv::app::EmptyLines::kSkipped, .stop = &stop_flag()},
                         [&](std::span<const std::string_view> fields, Index line) {
                           Index columns = 0;
                           for (const std::string_view field : fields) {
                             columns += count_numbers(field, {input_name(path), line});
                           }
                           fewest = rows++ == 0 ? columns : std::min(fewest, columns);
                           most = std::max(most, columns);
                           return true;
                         });
  Inspection result;
  const std::string columns =
      fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most);
  result.text = fmt::format("{}: a table of numbers: rows {}, columns {}, every line read\n",
                            shown_name(path), rows, columns);
  result.json["kind"] = "numbers";
  result.json["rows"] = rows;
  result.json["columns"] = {fewest, most};
  return result;
}

Inspection inspect_text(const std::string& path) {
  const TextRows rows = read_rows(path);
  Inspection result;
  result.text = fmt::format("{}: UTF-8 text: lines {}, empty lines {}, widest {}\n",
                            shown_name(path), rows.lines, rows.lines - rows.rows, rows.widest);
  result.json["kind"] = "text";
  result.json["lines"] = rows.lines;
  result.json["empty_lines"] = rows.lines - rows.rows;
  return result;
}
