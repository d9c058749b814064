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

// The style of a piece of a line. A colour that is not given is the terminal's default.
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
  // Returns the line so far, with the style reset at its end, and begins a new one.
  Line take();

 private:
  TerminalColours colours_;
  Look look_{};
  Line line_{};
};

// Paints the cells of a model for one style of terminal.
class CellPainter {
 public:
  CellPainter(const Model& model, const TerminalStyle& style);

  // Paints one cell in `width` columns of one line.
  void cell(Painter& painter, const Cell& cell, int width) const;
  // Paints two cells as the upper and the lower half of one character, which needs colour and
  // Unicode. `lower` is null below the last row.
  void pair(Painter& painter, const Cell& upper, const Cell* lower) const;
  // Paints the colour bar of the legend, from low to high numbers.
  void bar(Painter& painter, int width) const;
  // Whether numbers are shown by colours; else they are shown by marks.
  bool coloured() const { return style_.colours != TerminalColours::kNone; }
  // The number of colours or marks for numbers.
  int steps() const;
  // Without colour, the smallest number that always has a mark, however low it is on the bar: half
  // of each key's weight in a row that attends equally to all keys. Thus such a row is not blank
  // next to one that attends to a single key. Absent if the place on the bar alone decides.
  std::optional<double> faintest() const { return faintest_; }

 private:
  // Whether numbers have the colours of terminal_step(), which serve the blue palette on terminals
  // of 256 colours. Other palettes take the nearest of the 256 colours.
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
