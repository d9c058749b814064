// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_CHART_MODEL_H_
#define QKV_PICTURE_CHART_MODEL_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "picture/chart.h"
#include "picture/colours.h"
#include "picture/ticks.h"

// Shared by the renderers of a chart.
namespace qkv::app::picture {

// Throws Error of the public function for a chart that cannot be drawn.
void check_chart(const Chart& chart, std::string_view function);

bool is_drawn(const ChartPoint& point);

// Over all panels; of one panel. `most` ticks, about.
ScaleAxis x_axis(const Chart& chart, int most);
ScaleAxis y_axis(const ChartPanel& panel, int most);

// Between gaps: each a line, or a single point.
std::vector<std::vector<ChartPoint>> pieces(const ChartSeries& series);

// Eight colours that differ in every common form of colour blindness (Okabe and Ito, "Color
// universal design", 2008), for paper and terminals alike; then the same again.
inline constexpr std::size_t kRunColours = 8;
Rgb run_colour(std::size_t run);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_CHART_MODEL_H_
