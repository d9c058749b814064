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

// How a piece of a line looks: colours where given, else the terminal's own.
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

// Makes a line piece by piece. Without colour looks are left out.
class Painter {
 public:
  explicit Painter(const TerminalStyle& style) : colours_(style.colours) {}
  void put(const Look& look, std::string_view text, int width);
  void blanks(int width) { put({}, std::string(static_cast<std::size_t>(width), ' '), width); }
  // The line so far, with the terminal's own look at its end.
  Line take();

 private:
  TerminalColours colours_;
  Look look_{};
  Line line_{};
};

// The marks of cells for one style of terminal.
class CellPainter {
 public:
  CellPainter(const Model& model, const TerminalStyle& style) : model_(model), style_(style) {}

  // One cell on `width` columns of one line.
  void cell(Painter& painter, const Cell& cell, int width) const;
  // Two cells, one above the other, on one column; only with colour and Unicode.
  void pair(Painter& painter, const Cell& upper, const Cell* lower) const;
  // The bar, from low to high.
  void bar(Painter& painter, int width) const;
  // Whether colours tell numbers apart; else marks do.
  bool coloured() const { return style_.colours != TerminalColours::kNone; }
  // How many marks there are for numbers without colour.
  static int shades(const TerminalStyle& style);

 private:
  Rgb colour_of(const Cell& cell) const;
  std::string_view mark_of(const Cell& cell) const;
  std::string_view shade(double place) const;

  const Model& model_;
  const TerminalStyle& style_;
};

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_PAINTER_H_
