// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <qkv/error.h>

#include "picture/chart.h"
#include "picture/chart_model.h"
#include "picture/label_text.h"
#include "picture/painter.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using namespace picture;  // NOLINT(google-build-using-namespace): this folder's own names

constexpr int kNarrowestChart = 32;
constexpr int kFirstLines = 14;   // height of the first panel
constexpr int kNextLines = 9;     // height of each other panel
constexpr int kTickColumns = 14;  // width for each tick of the x axis
constexpr std::string_view kRunMarks[] = {"●", "▲", "■", "◆", "○", "△", "□", "◇"};
constexpr std::string_view kAsciiRunMarks = "abcdefgh";

// A character shows up to 8 dots in two columns and four rows: it is U+2800 plus a bit for each dot
// (Unicode, Braille Patterns).
constexpr int kAcross = 2;
constexpr int kDown = 4;
constexpr unsigned kBits[kDown][kAcross] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

std::string braille(unsigned bits) {
  const unsigned code = 0x2800U + bits;
  return {static_cast<char>(0xE0U | (code >> 12U)),
          static_cast<char>(0x80U | ((code >> 6U) & 0x3FU)),
          static_cast<char>(0x80U | (code & 0x3FU))};
}

// The characters of one plot.
class Canvas {
 public:
  Canvas(int columns, int lines)
      : columns_(columns),
        lines_(lines),
        cells_(static_cast<std::size_t>(columns) * static_cast<std::size_t>(lines)) {}

  // Draws a line between two points, whose coordinates are from 0 (left, bottom) to 1. A dot is set
  // in each column and in each row of dots that the line crosses.
  void line(const ChartPoint& from, const ChartPoint& to, std::size_t run) {
    const double x0 = from.x * (columns_ * kAcross - 1);
    const double y0 = (1 - from.y) * (lines_ * kDown - 1);
    const double x1 = to.x * (columns_ * kAcross - 1);
    const double y1 = (1 - to.y) * (lines_ * kDown - 1);
    const int steps =
        static_cast<int>(std::ceil(std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1.0})));
    for (int n = 0; n <= steps; ++n) {
      const double part = static_cast<double>(n) / steps;
      set(std::lround(x0 + (x1 - x0) * part), std::lround(y0 + (y1 - y0) * part), run);
    }
  }
  void mark(const ChartPoint& at, std::size_t run) {
    Cell& cell =
        cell_at(std::lround(at.x * (columns_ - 1)), std::lround((1 - at.y) * (lines_ - 1)));
    cell.is_mark = true;
    cell.run = run;
  }

  void paint(Painter& painter, int line, bool unicode) const {
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[place(column, line)];
      if (!cell.is_mark && cell.bits == 0) {
        painter.blanks(1);
        continue;
      }
      painter.put({.text = run_colour(cell.run)}, text_of(cell, unicode), 1);
    }
  }

  static std::string mark_of(std::size_t run, bool unicode) {
    const std::size_t n = run % kRunColours;
    return unicode ? std::string(kRunMarks[n]) : std::string(1, kAsciiRunMarks[n]);
  }

 private:
  struct Cell {
    unsigned bits = 0;
    bool is_mark = false;
    std::size_t run = 0;
  };

  static std::string text_of(const Cell& cell, bool unicode) {
    if (cell.is_mark) return mark_of(cell.run, unicode);
    return unicode ? braille(cell.bits) : ".";
  }
  std::size_t place(long column, long line) const {
    return static_cast<std::size_t>(line) * static_cast<std::size_t>(columns_) +
           static_cast<std::size_t>(column);
  }
  Cell& cell_at(long column, long line) { return cells_[place(column, line)]; }
  void set(long x, long y, std::size_t run) {
    Cell& cell = cell_at(x / kAcross, y / kDown);
    cell.bits |= kBits[y % kDown][x % kAcross];
    if (!cell.is_mark) cell.run = run;
  }

  int columns_;
  int lines_;
  std::vector<Cell> cells_;
};

class ChartScreen {
 public:
  ChartScreen(const Chart& chart, const TerminalStyle& style) : chart_(chart), style_(style) {
    check_chart(chart, "draw_terminal");
    if (style.columns < 1) {
      throw Error("draw_terminal", "style",
                  fmt::format("must have at least 1 column, got {}", style.columns));
    }
    style_.columns = std::max(style.columns, kNarrowestChart);
    for (const ChartPanel& panel : chart.panels) {
      axes_.push_back(y_axis(panel, axes_.empty() ? 5 : 3));
      for (const Tick& tick : axes_.back().ticks) {
        labels_ = std::max(labels_, static_cast<int>(tick.text.size()));
      }
    }
    width_ = style_.columns - labels_ - 2;
    x_ = x_axis(chart, std::max(width_ / kTickColumns, 1));
  }

  std::string draw() {
    for (std::size_t r = 0; r < chart_.runs.size(); ++r) legend(r);
    for (std::size_t p = 0; p < chart_.panels.size(); ++p) panel(p);
    x_labels();
    note();
    return text_;
  }

 private:
  void end_line(Painter& painter) {
    std::string line = painter.take().text;
    while (line.ends_with(' ')) line.pop_back();
    text_ += line + '\n';
  }
  // The text, shortened to at most `columns` columns.
  std::string shown(std::string_view text, int columns) const {
    const std::string line = shortened(text, columns);
    return style_.unicode ? line : in_ascii(line);
  }

  void legend(std::size_t r) {
    const ChartRun& run = chart_.runs[r];
    Painter painter(style_);
    painter.put({.text = run_colour(r)}, Canvas::mark_of(r, style_.unicode), 1);
    const std::string text = run.name + (run.remark.empty() ? "" : "   " + run.remark);
    painter.put({}, " " + shown(text, style_.columns - 2), 0);
    end_line(painter);
  }

  ChartPoint placed(const ChartPoint& point, const ScaleAxis& y) const {
    return {x_.place(point.x), y.place(point.y), {}};
  }

  void panel(std::size_t p) {
    const ScaleAxis& y = axes_[p];
    const int lines = p == 0 ? kFirstLines : kNextLines;
    Canvas canvas(width_, lines);
    for (const ChartSeries& one : chart_.panels[p].series) {
      for (const auto& piece : pieces(one)) {
        for (std::size_t n = 0; n < piece.size(); ++n) {
          canvas.line(placed(piece[n == 0 ? 0 : n - 1], y), placed(piece[n], y), one.run);
          if (one.stroke == ChartStroke::kMarked) canvas.mark(placed(piece[n], y), one.run);
        }
      }
    }
    Painter painter(style_);
    painter.put({.bold = true}, "\n" + shown(chart_.panels[p].name, style_.columns), 0);
    end_line(painter);
    for (int line = 0; line < lines; ++line) {
      painter.put({}, padded(label_at(y, line, lines), labels_, Side::kRight), 0);
      painter.put({}, style_.unicode ? " ┤" : " |", 2);
      canvas.paint(painter, line, style_.unicode);
      end_line(painter);
    }
  }

  // The text of the tick that is on a line, or "".
  static std::string label_at(const ScaleAxis& axis, int line, int lines) {
    for (const Tick& tick : axis.ticks) {
      if (std::lround((1 - tick.place) * (lines - 1)) == line) return tick.text;
    }
    return "";
  }

  void x_labels() {
    std::string line(static_cast<std::size_t>(labels_ + 2), ' ');
    for (const Tick& tick : x_.ticks) {
      const auto middle = labels_ + 2 + std::lround(tick.place * (width_ - 1));
      const auto size = static_cast<long>(tick.text.size());
      const auto start = std::min(middle - size / 2, static_cast<long>(style_.columns) - size);
      if (start < static_cast<long>(line.size())) continue;
      line.resize(static_cast<std::size_t>(start), ' ');
      line += tick.text;
    }
    text_ += line + '\n';
    const std::string indent(static_cast<std::size_t>(labels_ + 2), ' ');
    text_ += indent + shown(chart_.x_name, width_) + '\n';
    if (chart_.thin_name.empty() || chart_.marked_name.empty()) return;
    const std::string kinds =
        fmt::format("lines: {}; marks: {}", chart_.thin_name, chart_.marked_name);
    text_ += indent + shown(kinds, width_) + '\n';
  }

  void note() {
    const auto columns = [](const Cluster& cluster) { return static_cast<double>(cluster.width); };
    const std::string indent(static_cast<std::size_t>(labels_ + 2), ' ');
    if (chart_.note.empty()) return;
    for (const std::string& line : wrapped(chart_.note, width_, columns)) {
      text_ += indent + shown(line, width_) + '\n';
    }
  }

  const Chart& chart_;
  TerminalStyle style_;
  std::vector<ScaleAxis> axes_{};
  ScaleAxis x_{};
  int labels_ = 0;
  int width_ = 0;
  std::string text_{};
};

}  // namespace

std::string draw_terminal(const Chart& chart, const TerminalStyle& style) {
  return ChartScreen(chart, style).draw();
}

}  // namespace qkv::app
