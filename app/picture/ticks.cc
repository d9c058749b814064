// SPDX-License-Identifier: Apache-2.0
#include "picture/ticks.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

// The length of the shortest axis; a shorter one would have no step above 0.
constexpr double kShortest = 1e-300;

// Adds the multiples of the step that are on the axis, up to rounding. The loop counts an integer
// up to a limit, so that it ends for any numbers.
void add_ticks(ScaleAxis& axis, double step, int most) {
  const double first = std::ceil(axis.low / step - 1e-9);
  const double last = std::floor(axis.high / step + 1e-9);
  for (int n = 0; n < most + 3 && first + n <= last; ++n) {
    const double value = (first + n) * step;
    axis.ticks.push_back({axis.place(value), tick_text(value, step)});
  }
}

}  // namespace

double round_up(double x) {
  const double power = std::pow(10.0, std::floor(std::log10(x)));
  for (const double m : {1.0, 2.0, 2.5, 5.0}) {
    // Numbers that are round except for the rounding of the quotient count as round.
    if (m * power >= x * (1 - 1e-9)) return m * power;
  }
  return 10 * power;
}

std::string short_number(double value, int digits) {
  if (value == 0) return "0";
  std::string text = fmt::format("{:.{}g}", value, digits);
  // The exponent loses its plus sign and leading zero.
  const std::size_t exponent = text.find('e');
  if (exponent == text.npos) return text;
  if (text[exponent + 2] == '0') text.erase(exponent + 2, 1);
  if (text[exponent + 1] == '+') text.erase(exponent + 1, 1);
  return text;
}

std::string tick_text(double value, double step) {
  constexpr double kLeast = 1e-6;
  constexpr double kMost = 1e12;
  if (step < kLeast || std::abs(value) > kMost) return short_number(value, 6);
  int decimals = 0;
  for (double part = step; std::abs(part - std::round(part)) > 1e-6 * part; part *= 10) ++decimals;
  std::string text = fmt::format("{:.{}f}", std::abs(value), decimals);
  constexpr std::size_t kApart = 3;
  for (std::size_t at = std::min(text.find('.'), text.size()); at > kApart;) {
    at -= kApart;
    text.insert(at, ",");
  }
  return (value < 0 ? "-" : "") + text;
}

ScaleAxis value_axis(double low, double high, int most) {
  if (low >= 0 && low <= high / 2) low = 0;
  // For nearly equal numbers the axis has an end at 0: a step far below the numbers would be lost
  // in rounding.
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) {
    low = std::min(low, 0.0);
    high = std::max(high, low + (low < 0 ? -low : 1.0));
  }
  if (high - low < kShortest) high = low + 1;
  const double step = round_up((high - low) / most);
  ScaleAxis axis{step * std::floor(low / step + 1e-9), step * std::ceil(high / step - 1e-9), {}};
  add_ticks(axis, step, most);
  return axis;
}

ScaleAxis running_axis(double high, int most) {
  ScaleAxis axis{0, high < kShortest ? 1 : high, {}};
  add_ticks(axis, round_up(axis.high / most), most);
  return axis;
}

}  // namespace qkv::app::picture
