// SPDX-License-Identifier: Apache-2.0
#include "picture/columns.h"

#include <algorithm>

namespace qkv::app::picture {
namespace {

constexpr int kGap = 2;
constexpr int kNarrowest = 20;
constexpr int kShortestLabel = 8;

int widest(const std::vector<std::string>& texts) {
  int width = 0;
  for (const std::string& text : texts) width = std::max(width, display_width(text));
  return width;
}

double columns_of(const Cluster& cluster) { return cluster.width; }

// A table cut into bands that are no wider than the limit, one below the other.
class Bands {
 public:
  Bands(const std::vector<std::string>& labels, const std::vector<Column>& columns, int limit)
      : labels_(labels), columns_(columns), limit_(limit > 0 ? std::max(limit, kNarrowest) : 0) {
    int numbers = 0;
    for (const Column& column : columns) {
      const int cells = widest(column.cells);
      widths_.push_back(std::max(cells, display_width(column.head)));
      numbers = std::max(numbers, cells);
    }
    label_ = widest(labels);
    if (limit_ == 0) return;
    label_ = std::min(label_, std::max(kShortestLabel, limit_ / 3));
    label_ = std::max(1, std::min(label_, limit_ - kGap - numbers));
    for (int& width : widths_) width = std::min(width, limit_ - kGap - label_);
  }

  std::string text() const {
    std::string text;
    for (std::size_t from = 0; from < columns_.size();) {
      const std::size_t to = end_of(from);
      if (from > 0) text += '\n';
      text += band(from, to);
      from = to;
    }
    return text;
  }

 private:
  std::size_t end_of(std::size_t from) const {
    if (limit_ == 0) return columns_.size();
    int used = label_;
    std::size_t to = from;
    while (to < columns_.size() && used + kGap + widths_[to] <= limit_)
      used += kGap + widths_[to++];
    return std::max(to, from + 1);
  }

  // The text of the band of columns [from, to).
  std::string band(std::size_t from, std::size_t to) const {
    std::string text(static_cast<std::size_t>(label_), ' ');
    for (std::size_t c = from; c < to; ++c) text += cell(c, columns_[c].head, c + 1 == to);
    text += '\n';
    for (std::size_t row = 0; row < labels_.size(); ++row) {
      text += padded(fitted(labels_[row], label_), label_, Side::kLeft);
      for (std::size_t c = from; c < to; ++c) text += cell(c, columns_[c].cells[row], c + 1 == to);
      text += '\n';
    }
    return text;
  }

  std::string cell(std::size_t c, const std::string& content, bool last) const {
    const Column& column = columns_[c];
    const std::string shown = fitted(content, widths_[c]);
    const bool unpadded = last && column.side == Side::kLeft;  // no blanks at the end of a line
    return std::string(kGap, ' ') +
           padded(shown, unpadded ? display_width(shown) : widths_[c], column.side);
  }

  std::string fitted(const std::string& content, int width) const {
    return limit_ > 0 ? shortened(content, width) : content;
  }

  const std::vector<std::string>& labels_;
  const std::vector<Column>& columns_;
  int limit_;  // 0 for none
  int label_ = 0;
  std::vector<int> widths_;
};

}  // namespace

std::string in_bands(const std::vector<std::string>& labels, const std::vector<Column>& columns,
                     int limit) {
  return Bands(labels, columns, limit).text();
}

std::string in_lines(std::string_view text, int limit) {
  if (limit <= 0) return std::string(text) + '\n';
  std::string lines;
  for (const std::string& line : wrapped(text, std::max(limit, kNarrowest), columns_of)) {
    lines += line + '\n';
  }
  return lines;
}

}  // namespace qkv::app::picture
