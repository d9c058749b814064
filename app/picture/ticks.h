// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_TICKS_H_
#define QKV_PICTURE_TICKS_H_

#include <string>
#include <vector>

// Round numbers on scales, which are the bar of a map and the axes of a chart.
namespace qkv::app::picture {

struct Tick {
  double place = 0;  // from 0 at the low end to 1 at the high end
  std::string text{};
};

// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below x > 0.
double round_up(double x);

// The number with at most `digits` significant digits and no trailing zeros: "0.25", "1e-6", "5e4",
// "12".
std::string short_number(double value, int digits);

// The number with as many decimals as multiples of `step` need, and its thousands separated:
// "1,500".
std::string tick_text(double value, double step);

// One axis of a chart, low < high, with ticks at multiples of a round step.
struct ScaleAxis {
  double low = 0;
  double high = 1;
  std::vector<Tick> ticks{};

  double place(double value) const { return (value - low) / (high - low); }
};

// An axis for numbers from `low` to `high`. Its ends are ticks, and it has at most `most` + 2 of
// them. For numbers above 0 it begins at 0 unless that would leave more than half of it empty.
// Numbers that differ only in the tenth digit count as one.
ScaleAxis value_axis(double low, double high, int most);
// An axis from 0 to `high` exactly, with at most `most` + 1 ticks.
ScaleAxis running_axis(double high, int most);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_TICKS_H_
