// SPDX-License-Identifier: Apache-2.0
#include "picture/chart_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include <qkv/error.h>

namespace qkv::app::picture {
namespace {

template <class Take>
void for_each_drawn(const ChartPanel& panel, const Take& take) {
  for (const ChartSeries& series : panel.series) {
    for (const ChartPoint& point : series.points) {
      if (is_drawn(point)) take(point);
    }
  }
}

}  // namespace

void check_chart(const Chart& chart, std::string_view function) {
  Index points = 0;
  for (const ChartPanel& panel : chart.panels) {
    for_each_drawn(panel, [&](const ChartPoint&) { ++points; });
    for (const ChartSeries& series : panel.series) {
      if (series.run < chart.runs.size()) continue;
      throw Error(function, "chart",
                  fmt::format("must have only series of runs below {}, got run {}",
                              chart.runs.size(), series.run));
    }
  }
  if (points == 0) throw Error(function, "chart", "must have a point to draw, got none");
}

bool is_drawn(const ChartPoint& point) {
  return std::isfinite(point.x) && std::abs(point.x) < kMostDrawn && std::isfinite(point.y) &&
         std::abs(point.y) < kMostDrawn;
}

ScaleAxis x_axis(const Chart& chart, int most) {
  double high = 0;
  for (const ChartPanel& panel : chart.panels) {
    for_each_drawn(panel, [&](const ChartPoint& point) { high = std::max(high, point.x); });
  }
  return running_axis(high, most);
}

ScaleAxis y_axis(const ChartPanel& panel, int most) {
  double low = HUGE_VAL;
  double high = -HUGE_VAL;
  for_each_drawn(panel, [&](const ChartPoint& point) {
    low = std::min(low, point.y);
    high = std::max(high, point.y);
  });
  return low <= high ? value_axis(low, high, most) : value_axis(0, 1, most);
}

std::vector<std::vector<ChartPoint>> pieces(const ChartSeries& series) {
  std::vector<std::vector<ChartPoint>> all;
  bool is_open = false;
  for (const ChartPoint& point : series.points) {
    if (is_drawn(point)) {
      if (!is_open) all.emplace_back();
      all.back().push_back(point);
    }
    is_open = is_drawn(point);
  }
  return all;
}

Rgb run_colour(std::size_t run) {
  constexpr std::array<Rgb, kRunColours> kColours{{{0, 114, 178},
                                                   {230, 159, 0},
                                                   {0, 158, 115},
                                                   {204, 121, 167},
                                                   {213, 94, 0},
                                                   {86, 180, 233},
                                                   {148, 138, 20},
                                                   {120, 120, 120}}};
  return kColours[run % kRunColours];
}

}  // namespace qkv::app::picture
