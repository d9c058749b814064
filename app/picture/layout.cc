// SPDX-License-Identifier: Apache-2.0
#include "picture/layout.h"

#include <algorithm>
#include <cmath>

#include <qkv/app/utf8.h>

#include "picture/label_text.h"
#include "text/text.h"

namespace qkv::app::picture {
namespace {

constexpr double kColumn = 0.602;     // the advance of every character of DejaVu Sans Mono, in ems
constexpr double kWide = 1.28;        // the advance of emoji, the largest in common fonts
constexpr double kOther = 1.0;        // the advance of characters of other scripts and fonts
constexpr double kLargestLabel = 11;  // font size
constexpr double kSmallestLabel = 5;  // font size; smaller labels are illegible
constexpr double kThinnedLabel = 8;   // font size if some are left out, as all would be illegible
// The largest font size of a label as a part of its cell's height: letters with accents, emoji and
// Chinese fit in 1.2 ems.
constexpr double kLabelPerCell = 0.8;
constexpr Index kNumberedColumns = 12;  // maps up to this size show their numbers
constexpr Index kNumberedRows = 24;
constexpr double kNumberCell = 32;
constexpr double kWidestCell = 96;
constexpr double kLargestCell = 40;     // in a map without numbers
constexpr double kWidestNumbers = 760;  // width of a map that shows its numbers
constexpr double kNarrowestText = 400;

// Whether DejaVu Sans Mono has a character: Latin, Greek, Cyrillic, Arabic, punctuation, arrows,
// mathematics, lines and blocks.
bool in_font(char32_t c) {
  return c < 0x530 || (c >= 0x621 && c <= 0x6D5) || (c >= 0x1E00 && c <= 0x1FFF) ||
         (c >= 0x2010 && c <= 0x2027) || (c >= 0x2190 && c <= 0x22FF) ||
         (c >= 0x2500 && c <= 0x25FF) || c == 0xFFFD;
}

double cluster_width(const Cluster& cluster) {
  if (cluster.width == 2) return kWide;
  double width = 0;
  for (std::size_t at = 0; at < cluster.bytes.size();) {
    const char32_t c = next_code_point(cluster.bytes, at).value_or(0xFFFD);
    if (!in_font(c)) width += kOther;
  }
  return std::max(width, kColumn * cluster.width);
}

double longest(const Axis& axis) {
  double ems = 0;
  for (const std::string& label : axis.labels) ems = std::max(ems, em_width(label));
  return ems;
}

// The first of 1, 2, 5, 10, 20, ... that is not below x.
Index round_step(double x) {
  for (Index power = 1;; power *= 10) {
    for (const Index m : {1, 2, 5}) {
      if (static_cast<double>(m * power) >= x) return m * power;
    }
  }
}

// The style of labels at right angles to their axis: of queries, and of keys if rotated.
Labels side_by_side(const Axis& axis, double cell) {
  Labels labels;
  labels.size = std::min(kLargestLabel, kLabelPerCell * cell);
  if (labels.size < kSmallestLabel) {
    labels.size = kThinnedLabel;
    labels.step = round_step(kThinnedLabel / kLabelPerCell / cell);
  }
  labels.extent = longest(axis) * labels.size;
  return labels;
}

constexpr double kBetweenLevel = 6;  // the least gap between two horizontal labels

// The largest font size at which horizontal words fit side by side, each above its own key; 0 if
// there is none. A long word between short ones may be wider than its cell by half.
double level_size(const Axis& axis, double cell) {
  constexpr double kSmallestLevel = 9;
  double widest = longest(axis) / 1.5;  // the width that a cell needs, in ems
  for (std::size_t j = 1; j < axis.labels.size(); ++j) {
    widest = std::max(widest, (em_width(axis.labels[j - 1]) + em_width(axis.labels[j])) / 2);
  }
  const double size = std::min(kLargestLabel, std::floor((cell - kBetweenLevel) / widest * 2) / 2);
  return size < kSmallestLevel ? 0 : size;
}

// The style of key labels, which are horizontal if they fit, since rotated ones are hard to read.
Labels key_labels(const Axis& axis, double cell) {
  Labels labels;
  if (axis.numbered && axis.size() > 1) {
    // Numbers may be skipped, since it is easy to find 15 between 10 and 20. Words are skipped only
    // if they would be illegible.
    labels.size = 9;
    labels.step = round_step((longest(axis) * labels.size + kBetweenLevel) / cell);
    labels.extent = labels.size;
    return labels;
  }
  labels.size = level_size(axis, cell);
  labels.extent = labels.size;
  if (labels.size > 0) return labels;
  labels = side_by_side(axis, cell);
  labels.rotated = true;
  return labels;
}

// Numbers both axes with the larger of their steps, unless one axis is too short to keep two
// numbers.
void share_step(const Model& model, Layout& layout) {
  if (!model.queries().numbered || !model.keys().numbered) return;
  const Index step = std::max(layout.queries.step, layout.keys.step);
  if (step >= std::min(model.queries().size(), model.keys().size())) return;
  layout.queries.step = layout.keys.step = step;
}

// The smallest cell width of from, from + 1, ..., most that has room for horizontal labels, or 0.
double readable_width(const Axis& axis, double from, double most) {
  for (Index more = 0; from + static_cast<double>(more) <= most; ++more) {
    const double width = from + static_cast<double>(more);
    if (level_size(axis, width) > 0) return width;
  }
  return 0;
}

struct Cells {
  double width;
  double height;
  bool numbers;
};

Cells cell_sizes(const Model& model) {
  const Index rows = model.queries().size();
  const Index columns = model.keys().size();
  const Index panels = model.panels();
  if (panels == 1 && columns <= kNumberedColumns && rows <= kNumberedRows) {
    // Cells are wider if that makes the key labels fit without rotation.
    const double most = std::min(kWidestCell, kWidestNumbers / static_cast<double>(columns));
    const double width = readable_width(model.keys(), kNumberCell, most);
    return {width > 0 ? width : kNumberCell, kNumberCell, true};
  }
  const double room = panels == 1 ? 720 : panels == 2 ? 400 : panels <= 4 ? 320 : 240;
  const double largest = panels == 1 ? 28 : 20;
  double cell = std::min(room / static_cast<double>(std::max(rows, columns)), largest);
  if (cell >= 2) cell = std::floor(cell * 2) / 2;
  // Cells are larger if that makes the key labels fit without rotation.
  const double most = std::min(room / static_cast<double>(std::max(rows, columns)), kLargestCell);
  if (!model.keys().numbered && level_size(model.keys(), cell) == 0) {
    const double larger = readable_width(model.keys(), std::ceil(cell), most);
    if (larger > 0) return {larger, larger, false};
  }
  cell = std::max(cell, 1.0);
  return {cell, cell, false};
}

// The number of panels per row that makes the grid's shape most like a page's. Empty places in the
// last row count against it.
Index grid_columns(Index panels, double width, double height) {
  constexpr double kPage = 1.6;
  Index best = 1;
  double best_cost = HUGE_VAL;
  for (Index columns = 1; columns <= panels; ++columns) {
    const Index rows = (panels + columns - 1) / columns;
    const double shape =
        static_cast<double>(columns) * width / (static_cast<double>(rows) * height);
    const double holes =
        static_cast<double>(rows * columns - panels) / static_cast<double>(rows * columns);
    const double cost = std::abs(std::log(shape / kPage)) + 2 * holes;
    if (cost < best_cost) {
      best = columns;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace

double em_width(std::string_view text) {
  double width = 0;
  for (const Cluster& cluster : clusters(text)) width += cluster_width(cluster);
  return width;
}

std::vector<std::string> wrapped_ems(std::string_view text, double ems) {
  return wrapped(text, ems, cluster_width);
}

Layout lay_out(const Model& model, Index columns) {
  Layout layout;
  const Cells cells = cell_sizes(model);
  layout.cell_width = cells.width;
  layout.cell_height = cells.height;
  layout.numbers = cells.numbers;
  layout.queries = side_by_side(model.queries(), cells.height);
  layout.keys = key_labels(model.keys(), cells.width);
  share_step(model, layout);
  layout.map_width = cells.width * static_cast<double>(model.keys().size());
  layout.map_height = cells.height * static_cast<double>(model.queries().size());

  bool titled = false;
  double widest_title = 0;
  for (Index p = 0; p < model.panels(); ++p) {
    titled = titled || !model.panel_title(p).empty();
    widest_title = std::max(widest_title, em_width(model.panel_title(p)) * kPanelTitleSize);
  }
  const double title_height = titled ? kPanelTitleSize * kLine + 2 : 0;
  layout.across = std::ceil(std::max(layout.map_width, widest_title) + kPanelGap);
  layout.down = std::ceil(layout.map_height + title_height + kPanelGap);
  layout.grid_columns = columns > 0 ? std::min(columns, model.panels())
                                    : grid_columns(model.panels(), layout.across, layout.down);
  const Index grid_rows = (model.panels() + layout.grid_columns - 1) / layout.grid_columns;

  // Positions are whole units, so that cell edges fall on whole pixels.
  layout.left = std::ceil(kMargin + kSmallSize * kLine + 3 + layout.queries.extent + kLabelGap);
  layout.grid_right =
      layout.left + static_cast<double>(layout.grid_columns) * layout.across - kPanelGap;
  layout.text_width = std::max(layout.grid_right - kMargin, kNarrowestText);
  layout.title = wrapped_ems(model.title(), layout.text_width / kTitleSize);
  layout.top = std::ceil(kMargin + static_cast<double>(layout.title.size()) * kTitleSize * kLine +
                         (layout.title.empty() ? 0 : 4) + kSmallSize * kLine + title_height +
                         layout.keys.extent + kLabelGap);
  layout.grid_bottom =
      layout.top + static_cast<double>(grid_rows) * layout.down - kPanelGap - title_height;
  return layout;
}

}  // namespace qkv::app::picture
