// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_SVG_WRITER_H_
#define QKV_PICTURE_SVG_WRITER_H_

#include <algorithm>
#include <string>
#include <string_view>

#include "picture/colours.h"

// Writes the few SVG elements that pictures consist of, one after the other.
namespace qkv::app::picture {

// The layout assumes the widths of its letters.
inline constexpr std::string_view kUsualFont = "DejaVu Sans Mono";

enum class Anchor { kStart, kMiddle, kEnd };

struct TextSpot {
  double x = 0;
  double y = 0;  // of the baseline
  double size = 11;
  Anchor anchor = Anchor::kStart;
  std::string_view fill = "#222";
  bool upright = false;  // rotated 90 degrees counter-clockwise
  bool bold = false;
};

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

class SvgWriter {
 public:
  void text(std::string_view id, const TextSpot& spot, std::string_view content);
  void box(const Box& box, std::string_view fill, std::string_view stroke = "none");
  // Path data in units of `scale_x` by `scale_y`, its origin at (x, y).
  void open_group(std::string_view id, const Box& origin_and_scale);
  void path(std::string_view data, std::string_view paint);
  // The same in the picture's units, with an id.
  void named_path(std::string_view id, std::string_view data, std::string_view paint);
  // A circle, with a title that is shown under the pointer unless it is empty.
  void dot(double x, double y, double radius, std::string_view paint, std::string_view title);
  // Shapes in it are invisible but have the pointer's attention.
  void open_invisible_group(std::string_view id, const Box& origin_and_scale);
  // The cell of a group in units of cells, with a title that is shown under the pointer.
  void titled_cell(long long column, long long row, std::string_view title);
  // What draws what follows, without effect on it.
  void open_named_group(std::string_view id);
  void close_group() { body_ += "</g>\n"; }

  // The extent of text and boxes.
  double right() const { return right_; }
  double bottom() const { return bottom_; }

  // The document; the right and bottom margins equal the left one.
  struct Head {
    std::string definitions{};
    std::string title{};
    std::string description{};
    std::string font{};  // a family; empty: only the usual ones
  };
  std::string document(double margin, const Head& head) const;

 private:
  void reach(double x, double y) {
    right_ = std::max(right_, x);
    bottom_ = std::max(bottom_, y);
  }

  std::string body_;
  double right_ = 0;
  double bottom_ = 0;
};

// "12.5": at most two decimals.
std::string unit(double value);

// Escapes text for XML, which cannot represent control characters: labels have none left.
std::string escaped(std::string_view text);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_SVG_WRITER_H_
