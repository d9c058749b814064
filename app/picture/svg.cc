// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/picture.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "picture/colours.h"
#include "picture/layout.h"
#include "picture/model.h"
#include "picture/svg_legend.h"
#include "picture/svg_paint.h"
#include "picture/svg_writer.h"
#include "text/text.h"

namespace qkv::app {
namespace {

using namespace picture;  // NOLINT(google-build-using-namespace): this folder's own names

constexpr Index kMostCells = 4'000'000;
constexpr Index kLongestAxis = 10'000;
constexpr Index kMostTitledCells = 20'000;  // about 1.2 MB; more only for CellTitles::kAlways

// Throws Error for a font name that cannot be put between quotes in a list.
void check_font(const std::string& font) {
  if (font.find_first_of("'\"\\,;<>&") == font.npos && printable(font) == font) return;
  throw Error("draw_svg", "font",
              "must be one name without quotes, commas and the like, got " + quoted(font));
}

class Drawing {
 public:
  explicit Drawing(const Picture& picture) : model_(picture, "draw_svg") {
    const Index cells = model_.panels() * model_.queries().size() * model_.keys().size();
    if (cells > kMostCells || model_.queries().size() > kLongestAxis ||
        model_.keys().size() > kLongestAxis) {
      throw Error(
          "draw_svg", "panels",
          fmt::format("must have at most {} cells, and {} queries or keys; got maps x queries "
                      "x keys = {} x {} x {}: select or reduce",
                      kMostCells, kLongestAxis, model_.panels(), model_.queries().size(),
                      model_.keys().size()));
    }
    check_font(picture.font);
    font_ = picture.font;
    notes_drawn_ = picture.notes_drawn;
    cell_titles_ = picture.cell_titles == CellTitles::kAlways ||
                   (picture.cell_titles == CellTitles::kUsual && cells <= kMostTitledCells);
    layout_ = lay_out(model_, picture.columns);
  }

  std::string draw() {
    double y = kMargin;
    for (std::size_t n = 0; n < layout_.title.size(); ++n) {
      y += kTitleSize * (n == 0 ? 1 : kLine);
      svg_.text(fmt::format("title-{}", n),
                {kMargin, y, kTitleSize, Anchor::kStart, kInk, false, true}, layout_.title[n]);
    }
    axis_names();
    for (Index p = 0; p < model_.panels(); ++p) panel(p);
    draw_legend(svg_, model_, layout_);
    if (notes_drawn_) notes();
    return svg_.document(kMargin,
                         {definitions(model_, layout_), model_.title(), description(), font_});
  }

 private:
  double map_left(Index panel) const {
    return layout_.left + static_cast<double>(panel % layout_.grid_columns) * layout_.across;
  }
  double map_top(Index panel) const {
    const Index row = panel / layout_.grid_columns;
    return layout_.top + static_cast<double>(row) * layout_.down;
  }
  Box cells_at(double x, double y) const { return {x, y, layout_.cell_width, layout_.cell_height}; }

  // ---- labels -------------------------------------------------------------------------------

  void axis_names() {
    const double em = kSmallSize;
    const bool rows_fit = em_width(model_.row_name()) * em <= layout_.map_height;
    for (Index p = 0; rows_fit && p < model_.panels(); p += layout_.grid_columns) {
      svg_.text(
          fmt::format("queries-{}", p),
          {kMargin + em, map_top(p) + layout_.map_height / 2, em, Anchor::kMiddle, kFaint, true},
          model_.row_name());
    }
    // A map that is too low for the name of its rows has both names above it.
    const std::string name =
        rows_fit ? model_.column_name()
                 : fmt::format("{} (rows: {})", model_.column_name(), model_.row_name());
    const double y = layout_.top - kLabelGap - layout_.keys.extent - em * (kLine - 1);
    const double width = em_width(name) * em;
    const bool centred = width <= layout_.map_width;
    const bool each = width <= layout_.across - em;
    for (Index p = 0; p < (each ? std::min(layout_.grid_columns, model_.panels()) : 1); ++p) {
      svg_.text(fmt::format("keys-{}", p),
                {map_left(p) + (centred ? layout_.map_width / 2 : 0), y, em,
                 centred ? Anchor::kMiddle : Anchor::kStart, kFaint},
                name);
    }
  }

  // Query labels are left of the first panel of each row of the grid, key labels above the first
  // row.
  void query_labels(Index p) {
    const Labels& style = layout_.queries;
    for (Index i = 0; i < model_.queries().size(); i += style.step) {
      const double middle = map_top(p) + (static_cast<double>(i) + 0.5) * layout_.cell_height;
      svg_.text(fmt::format("p{}-q{}", p, i),
                {map_left(p) - kLabelGap, middle + kBaseline * style.size, style.size, Anchor::kEnd,
                 kInk},
                model_.queries().labels[static_cast<std::size_t>(i)]);
    }
  }

  void key_labels(Index p) {
    const Labels& style = layout_.keys;
    const double bottom = map_top(p) - kLabelGap;
    for (Index j = 0; j < model_.keys().size(); j += style.step) {
      const double middle = map_left(p) + (static_cast<double>(j) + 0.5) * layout_.cell_width;
      const TextSpot upright{
          middle + kBaseline * style.size, bottom, style.size, Anchor::kStart, kInk, true};
      const TextSpot level{middle, bottom, style.size, Anchor::kMiddle, kInk};
      svg_.text(fmt::format("p{}-k{}", p, j), style.rotated ? upright : level,
                model_.keys().labels[static_cast<std::size_t>(j)]);
    }
  }

  // ---- maps ---------------------------------------------------------------------------------

  // Draws one path for each colour, in which equal neighbours in a row are one rectangle.
  void map(Index p) {
    std::vector<std::string> paths(kFills);
    std::string crosses;
    for (Index i = 0; i < model_.queries().size(); ++i) {
      std::size_t fill = fill_of(model_.cell(p, i, 0));
      for (Index j = 0, start = 0; j < model_.keys().size(); ++j) {
        if (fill == kFillNotFinite)
          crosses += fmt::format("M{} {}l.5 .5m-.5 0l.5-.5", cross(j), cross(i));
        const bool last = j + 1 == model_.keys().size();
        const std::size_t next = last ? kFills : fill_of(model_.cell(p, i, j + 1));
        if (next == fill) continue;
        const Index width = j + 1 - start;
        paths[fill] += fmt::format("M{} {}h{}v1h-{}z", start, i, width, width);
        fill = next;
        start = j + 1;
      }
    }
    svg_.open_group(fmt::format("p{}-map", p), cells_at(map_left(p), map_top(p)));
    for (std::size_t fill = 0; fill < kFills; ++fill) {
      if (paths[fill].empty()) continue;
      svg_.path(paths[fill], paint_of(model_.palette(), fill) + " shape-rendering=\"crispEdges\"");
    }
    if (!crosses.empty()) {
      svg_.path(crosses, "fill=\"none\" stroke=\"#fff\" stroke-width=\"0.12\"");
    }
    svg_.close_group();
  }

  static std::string cross(Index at) { return unit(static_cast<double>(at) + 0.25); }

  // Draws white lines between the cells, unless the cells are too small, and a frame.
  void rules(Index p) {
    const double x = map_left(p);
    const double y = map_top(p);
    const double thinnest = std::min(layout_.cell_width, layout_.cell_height);
    if (thinnest >= 8) {
      std::string lines;
      for (Index j = 1; j < model_.keys().size(); ++j) {
        lines += fmt::format("M{} {}v{}", unit(x + static_cast<double>(j) * layout_.cell_width),
                             unit(y), unit(layout_.map_height));
      }
      for (Index i = 1; i < model_.queries().size(); ++i) {
        lines += fmt::format("M{} {}h{}", unit(x),
                             unit(y + static_cast<double>(i) * layout_.cell_height),
                             unit(layout_.map_width));
      }
      if (!lines.empty()) {
        svg_.path(lines, fmt::format("fill=\"none\" stroke=\"#fff\" stroke-width=\"{}\"",
                                     thinnest >= 16 ? "1" : "0.5"));
      }
    }
    svg_.box({x, y, layout_.map_width, layout_.map_height}, "none", "#888");
  }

  // Draws a tick at each labelled row or column of an axis on which only some are labelled.
  void marks(Index p) {
    const Index rows = p % layout_.grid_columns == 0 ? model_.queries().size() : 0;
    const Index columns = p < layout_.grid_columns ? model_.keys().size() : 0;
    std::string lines;
    for (Index i = 0; layout_.queries.step > 1 && i < rows; i += layout_.queries.step) {
      const double middle = (static_cast<double>(i) + 0.5) * layout_.cell_height;
      lines += fmt::format("M{} {}h-3", unit(map_left(p)), unit(map_top(p) + middle));
    }
    for (Index j = 0; layout_.keys.step > 1 && j < columns; j += layout_.keys.step) {
      const double middle = (static_cast<double>(j) + 0.5) * layout_.cell_width;
      lines += fmt::format("M{} {}v-3", unit(map_left(p) + middle), unit(map_top(p)));
    }
    if (!lines.empty()) svg_.path(lines, kThinLine);
  }

  void panel(Index p) {
    map(p);
    rules(p);
    marks(p);
    // On a logarithmic scale no numbers are shown, since small ones would be rounded to 0.
    if (layout_.numbers && model_.scale() != ColourScale::kLog) numbers(p);
    const bool first_row = p < layout_.grid_columns;
    if (p % layout_.grid_columns == 0) query_labels(p);
    if (first_row) key_labels(p);
    if (cell_titles_) cell_titles(p);
    const double lift = first_row ? layout_.keys.extent + kLabelGap + kSmallSize * kLine : 0;
    // The title is centred, but one wider than its map is left-aligned, to stay out of the margin.
    const std::string title = model_.panel_title(p);
    const bool wide = em_width(title) * kPanelTitleSize > layout_.map_width;
    svg_.text(fmt::format("p{}-title", p),
              {map_left(p) + (wide ? 0 : layout_.map_width / 2), map_top(p) - lift - 5,
               kPanelTitleSize, wide ? Anchor::kStart : Anchor::kMiddle, kInk},
              title);
  }

  // How the numbers are written in cells.
  struct NumberStyle {
    int decimals = 0;  // kPowers: one digit and a power of ten
    double size = kSmallSize;
  };
  static constexpr int kPowers = -1;

  // Whether a number is not 0 but rounds to it.
  static bool is_faint(double value, int decimals) {
    if (decimals == kPowers || value == 0) return false;
    const std::string text = fmt::format("{:.{}f}", std::abs(value), decimals);
    return text.find_first_not_of("0.") == text.npos;
  }
  static std::string number_text(double value, int decimals) {
    if (value == 0) return "0";
    if (decimals == kPowers) return fmt::format("{:.0e}", value);
    return fmt::format("{:.{}f}", is_faint(value, decimals) ? std::abs(value) : value, decimals);
  }

  // Whether all numbers of a map fit in their cells.
  bool fits(Index p, const NumberStyle& style) const {
    for (Index i = 0; i < model_.queries().size(); ++i) {
      for (Index j = 0; j < model_.keys().size(); ++j) {
        const Cell cell = model_.cell(p, i, j);
        if (fill_of(cell) > kFillZero) continue;
        const double width = em_width(number_text(cell.value, style.decimals)) * style.size;
        if (width > layout_.cell_width) return false;
      }
    }
    return true;
  }

  // The style of numbers: up to 3 decimals, for two or three digits of the largest number; where
  // there is no room, fewer decimals, then a smaller font, then powers of ten. None if nothing fits
  // or the largest number is too small for 3 decimals.
  std::optional<NumberStyle> number_style(Index p) const {
    constexpr int kSmallestNumber = 7;
    const double size = std::max(std::abs(model_.lowest()), std::abs(model_.highest()));
    if (size * 1000 < 9.5) return std::nullopt;
    const int most = size * 100 < 9.5 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
    for (int decimals = most; decimals >= 0; --decimals) {
      if (fits(p, {decimals, kSmallSize})) return NumberStyle{decimals, kSmallSize};
    }
    for (const int decimals : {0, kPowers}) {
      for (int smaller = 1; kSmallSize - smaller >= kSmallestNumber; ++smaller) {
        const NumberStyle style{decimals, kSmallSize - smaller};
        if (fits(p, style)) return style;
      }
    }
    return std::nullopt;
  }

  void numbers(Index p) {
    const std::optional<NumberStyle> style = number_style(p);
    if (!style) return;
    for (Index i = 0; i < model_.queries().size(); ++i) {
      for (Index j = 0; j < model_.keys().size(); ++j) {
        const Cell cell = model_.cell(p, i, j);
        const std::size_t fill = fill_of(cell);
        if (fill > kFillZero) continue;
        const bool dark = wants_dark_text(colour_of(model_.palette(), fill));
        svg_.text(fmt::format("p{}-v{}-{}", p, i, j),
                  {map_left(p) + (static_cast<double>(j) + 0.5) * layout_.cell_width,
                   map_top(p) + (static_cast<double>(i) + 0.5) * layout_.cell_height +
                       kBaseline * style->size,
                   style->size, Anchor::kMiddle,
                   is_faint(cell.value, style->decimals) ? "#8a9ea3"
                   : dark                                ? kInk
                                                         : "#fff"},
                  number_text(cell.value, style->decimals));
      }
    }
  }

  // Draws the titles of the cells above all else, since the pointer finds only the topmost shape.
  void cell_titles(Index p) {
    svg_.open_invisible_group(fmt::format("p{}-cells", p), cells_at(map_left(p), map_top(p)));
    for (Index i = 0; i < model_.queries().size(); ++i) {
      for (Index j = 0; j < model_.keys().size(); ++j) {
        svg_.titled_cell(
            j, i,
            fmt::format("{} → {}: {}", model_.queries().labels[static_cast<std::size_t>(i)],
                        model_.keys().labels[static_cast<std::size_t>(j)],
                        number_name(model_.cell(p, i, j))));
      }
    }
    svg_.close_group();
  }

  std::string number_name(const Cell& cell) const {
    if (cell.kind == CellKind::kMasked) return "masked";
    if (cell.kind == CellKind::kNotFinite) {
      return std::isnan(cell.value) ? "NaN" : cell.value > 0 ? "infinite" : "-infinite";
    }
    const bool plus = model_.palette().centred && cell.value > 0;
    return (plus ? "+" : "") + short_number(cell.value, 4);
  }

  // ---- below ----------------------------------------------------------------------------------

  std::string description() const {
    std::string text =
        fmt::format("rows are {}, columns are {}", model_.row_name(), model_.column_name());
    for (const std::string& note : model_.notes()) text += '\n' + note;
    return text;
  }

  // Draws the notes, which are not part of the figure: below a line, in a group that a program can
  // remove.
  void notes() {
    if (model_.notes().empty()) return;
    std::vector<std::string> lines;
    double widest = 0;  // width of the widest line in ems
    for (const std::string& note : model_.notes()) {
      for (std::string& line : wrapped_ems(note, layout_.text_width / kSmallSize)) {
        widest = std::max(widest, em_width(line));
        lines.push_back(std::move(line));
      }
    }
    svg_.open_named_group("notes");
    double y = svg_.bottom() + 16;
    // The line ends where the drawing or the widest note does: the room for notes may be wider.
    const double right = std::max(svg_.right(), kMargin + widest * kSmallSize);
    svg_.path(fmt::format("M{} {}h{}", unit(kMargin), unit(y),
                          unit(std::min(layout_.text_width, right - kMargin))),
              "fill=\"none\" stroke=\"#bbb\" stroke-width=\"0.5\"");
    y += 2;
    int n = 0;
    for (const std::string& line : lines) {
      y += kSmallSize * kLine;
      svg_.text(fmt::format("note-{}", n++), {kMargin, y, kSmallSize, Anchor::kStart, "#555"},
                line);
    }
    svg_.close_group();
  }

  Model model_;
  Layout layout_;
  SvgWriter svg_;
  std::string font_;
  bool notes_drawn_ = true;
  bool cell_titles_ = false;
};

}  // namespace

std::string draw_svg(const Picture& picture) { return Drawing(picture).draw(); }

}  // namespace qkv::app
