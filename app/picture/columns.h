// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_COLUMNS_H_
#define QKV_PICTURE_COLUMNS_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/export.h>

#include "picture/label_text.h"

namespace qkv::app::picture {

// A column of a table of text. All cells of a table are printable UTF-8.
struct Column {
  std::string head{};
  std::vector<std::string> cells{};  // one for each row
  Side side = Side::kRight;
};

// The text of a table: the labels of the rows, then the columns, two blanks apart. If `limit` is
// above 0, no line is wider than `limit` terminal columns (limits below 20 count as 20): columns
// that do not fit follow in bands below, each with the labels again. Labels and heads may be
// shortened, cells only if one is too wide for a line.
QKV_API std::string in_bands(const std::vector<std::string>& labels,
                             const std::vector<Column>& columns, int limit);

// The text and a line end. If `limit` is above 0, the text is broken between words into lines of at
// most `limit` terminal columns (limits below 20 count as 20).
QKV_API std::string in_lines(std::string_view text, int limit);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_COLUMNS_H_
