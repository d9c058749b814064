// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_CHART_MODEL_H_
#define QKV_PICTURE_CHART_MODEL_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "picture/chart.h"
#include "picture/colours.h"
#include "picture/ticks.h"

// The parts that the renderers of a chart share.
namespace qkv::app::picture {

// Throws Error in the name of the public `function` for a chart that cannot be drawn.
void check_chart(const Chart& chart, std::string_view function);

bool is_drawn(const ChartPoint& point);

// The axis for the x values of all panels, and the axis for the y values of one panel, each with
// about `most` ticks.
ScaleAxis x_axis(const Chart& chart, int most);
ScaleAxis y_axis(const ChartPanel& panel, int most);

// The parts of a series between gaps; each is a line or a single point.
std::vector<std::vector<ChartPoint>> pieces(const ChartSeries& series);

// The colour of a run, for paper and terminals alike: one of eight colours that differ in every
// common form of colour blindness, six of them by Okabe and Ito ("Color universal design", 2008).
// Later runs repeat the colours.
inline constexpr std::size_t kRunColours = 8;
Rgb run_colour(std::size_t run);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_CHART_MODEL_H_
