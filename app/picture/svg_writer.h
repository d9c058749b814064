// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_SVG_WRITER_H_
#define QKV_PICTURE_SVG_WRITER_H_

#include <algorithm>
#include <string>
#include <string_view>

#include "picture/colours.h"

// Writes the few SVG elements that pictures consist of, one after the other.
namespace qkv::app::picture {

// The usual font; the layout assumes the widths of its letters.
inline constexpr std::string_view kUsualFont = "DejaVu Sans Mono";

enum class Anchor { kStart, kMiddle, kEnd };

struct TextSpot {
  double x = 0;
  double y = 0;  // y of the baseline
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
  // Opens a group whose origin is at (x, y) and whose units are `width` by `height`.
  void open_group(std::string_view id, const Box& origin_and_scale);
  void path(std::string_view data, std::string_view paint);
  void named_path(std::string_view id, std::string_view data, std::string_view paint);
  // A circle. Its title, unless empty, is shown when the pointer is on it.
  void dot(double x, double y, double radius, std::string_view paint, std::string_view title);
  // Opens a group like open_group(), whose shapes are invisible but receive the pointer's events.
  void open_invisible_group(std::string_view id, const Box& origin_and_scale);
  // One cell in a group whose units are cells. Its title is shown when the pointer is on it.
  void titled_cell(long long column, long long row, std::string_view title);
  // Opens a group that has an id and no effect on the elements in it.
  void open_named_group(std::string_view id);
  void close_group() { body_ += "</g>\n"; }

  // The right and bottom ends of the text and boxes so far.
  double right() const { return right_; }
  double bottom() const { return bottom_; }

  struct Head {
    std::string definitions{};
    std::string title{};
    std::string description{};
    std::string font{};  // a font family; empty for the usual ones alone
  };
  // The text of the document, whose width and height exceed right() and bottom() by `margin`.
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

// A number with at most two decimals, such as "12.5".
std::string unit(double value);

// Escapes text for XML. The text must have no control characters except line ends.
std::string escaped(std::string_view text);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_SVG_WRITER_H_
