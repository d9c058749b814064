// SPDX-License-Identifier: Apache-2.0
#include "picture/svg_legend.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "picture/svg_paint.h"

namespace qkv::app::picture {
namespace {

constexpr double kBarWidth = 192;
constexpr double kBarHeight = 10;
constexpr double kSample = kBarHeight + 5;  // a sample and the gap after it
constexpr double kBetween = 16;             // the gap between items

struct Item {
  std::size_t fill = 0;
  std::string text{};
  double width() const { return kSample + em_width(text) * kSmallSize; }
};

std::vector<Item> items_of(const Model& model) {
  std::vector<Item> items;
  if (model.has(CellKind::kZero)) items.push_back({kFillZero, "exactly 0"});
  if (model.has(CellKind::kMasked)) items.push_back({kFillMasked, "masked"});
  if (model.has(CellKind::kNotFinite)) {
    items.push_back({kFillNotFinite, model.not_finite_name()});
  }
  return items;
}

void draw_bar(SvgWriter& svg, const Model& model, double x, double y) {
  svg.box({x, y, kBarWidth, kBarHeight}, "url(#bar)", "#888");
  double free = -HUGE_VAL;
  constexpr double kApart = kSmallSize;  // the gap between the labels of ticks
  const double end = x + kBarWidth - em_width(model.ticks().back().text) * kSmallSize / 2;
  std::string marks;
  int n = 0;
  for (const Tick& tick : model.ticks()) {
    const double at = x + tick.place * kBarWidth;
    const double half = em_width(tick.text) * kSmallSize / 2;
    // A label too near to the one before, or to the one at the high end, is left out.
    if (tick.place < 1 && (at - half < free || at + half + kApart > end)) continue;
    free = at + half + kApart;
    marks += fmt::format("M{} {}v3", unit(at), unit(y + kBarHeight));
    svg.text(fmt::format("tick-{}", n++),
             {at, y + kBarHeight + 3 + kSmallSize, kSmallSize, Anchor::kMiddle, kInk}, tick.text);
  }
  if (!marks.empty()) svg.path(marks, kThinLine);
}

// Draws a sample of a fill. `cells` has the sample's position and the size of a cell.
void draw_sample(SvgWriter& svg, const Box& cells, const Palette& palette, std::size_t fill) {
  const std::string width = fmt::format("{:.4g}", kBarHeight / cells.width);
  const std::string height = fmt::format("{:.4g}", kBarHeight / cells.height);
  svg.open_group("", cells);
  svg.path(fmt::format("M0 0h{}v{}h-{}z", width, height, width), paint_of(palette, fill));
  svg.close_group();
  if (fill == kFillNotFinite) {
    svg.path(fmt::format("M{} {}l5 5m-5 0l5-5", unit(cells.x + 2.5), unit(cells.y + 2.5)),
             "fill=\"none\" stroke=\"#fff\" stroke-width=\"1.2\"");
  }
  svg.box({cells.x, cells.y, kBarHeight, kBarHeight}, "none", "#888");
}

}  // namespace

void draw_legend(SvgWriter& svg, const Model& model, const Layout& layout) {
  const std::vector<Tick> ticks = model.ticks();
  const auto half_tick = [](const Tick& tick) { return em_width(tick.text) * kSmallSize / 2; };
  const double start = std::max(layout.left, kMargin + half_tick(ticks.front()));
  const double end = kMargin + layout.text_width;
  double y = layout.grid_bottom + 18;
  int n = 0;
  for (const std::string& line : wrapped_ems(model.bar_label(), (end - start) / kSmallSize)) {
    svg.text(n == 0 ? "bar-label" : fmt::format("bar-label-{}", n),
             {start, y + kBaseline * kSmallSize, kSmallSize, Anchor::kStart, kInk}, line);
    y += kSmallSize * kLine;
    ++n;
  }
  draw_bar(svg, model, start, y);
  const std::vector<Item> items = items_of(model);
  double all = 0;
  for (const Item& item : items) all += item.width() + kBetween;
  double x = start + kBarWidth + std::max(20.0, half_tick(ticks.back()) + 10);
  bool below = x + all > end;  // samples that do not all fit beside the bar go below it
  n = 0;
  for (const Item& item : items) {
    if (below || (x + item.width() > end && x > start)) {
      below = false;
      x = start;
      y = svg.bottom() + 8;
    }
    draw_sample(svg, {x, y, layout.cell_width, layout.cell_height}, model.palette(), item.fill);
    svg.text(fmt::format("legend-{}", n++),
             {x + kSample, y + kBarHeight / 2 + kBaseline * kSmallSize, kSmallSize, Anchor::kStart,
              kInk},
             item.text);
    x += item.width() + kBetween;
  }
}

}  // namespace qkv::app::picture
