// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_PAINTER_H_
#define QKV_PICTURE_PAINTER_H_

#include <optional>
#include <string>
#include <string_view>

#include <qkv/app/picture.h>

#include "picture/colours.h"
#include "picture/model.h"

namespace qkv::app::picture {

// The style of a piece of a line: the given colours, or the terminal's defaults.
struct Look {
  std::optional<Rgb> text{};
  std::optional<Rgb> background{};
  bool bold = false;
  friend bool operator==(const Look&, const Look&) = default;
};

// One line for a terminal and its width in columns.
struct Line {
  std::string text{};
  int width = 0;
};

// Builds a line piece by piece. Without colour, styles are ignored.
class Painter {
 public:
  explicit Painter(const TerminalStyle& style) : colours_(style.colours) {}
  void put(const Look& look, std::string_view text, int width);
  void blanks(int width) { put({}, std::string(static_cast<std::size_t>(width), ' '), width); }
  // The line so far, with the style reset at its end.
  Line take();

 private:
  TerminalColours colours_;
  Look look_{};
  Line line_{};
};

// The marks of cells for one style of terminal.
class CellPainter {
 public:
  CellPainter(const Model& model, const TerminalStyle& style);

  // One cell in `width` columns of one line.
  void cell(Painter& painter, const Cell& cell, int width) const;
  // Two cells, one above the other, in one column; only with colour and Unicode.
  void pair(Painter& painter, const Cell& upper, const Cell* lower) const;
  // The bar, from low to high.
  void bar(Painter& painter, int width) const;
  // Whether numbers are shown by colours or by marks.
  bool coloured() const { return style_.colours != TerminalColours::kNone; }
  // The number of colours or marks for numbers that can be told apart.
  int steps() const;
  // Without colour, numbers from here on have a mark, however low on the bar: half an even share
  // of a row's weight, so that rows that look everywhere alike are not blank beside one that
  // looks at a single key. None: the bar alone decides.
  std::optional<double> faintest() const { return faintest_; }

 private:
  // Whether the colours are those chosen for terminals of 256; other palettes take the nearest.
  bool has_steps() const;
  Rgb colour_at(double place) const;
  Rgb colour_of(const Cell& cell) const;
  std::string_view mark_of(const Cell& cell) const;
  std::string_view shade(int step) const;
  int step_of(double place) const;

  const Model& model_;
  const TerminalStyle& style_;
  std::optional<double> faintest_{};
};

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_PAINTER_H_
