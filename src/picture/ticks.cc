// SPDX-License-Identifier: Apache-2.0
#include "picture/ticks.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

// Multiples of the step in the axis, up to rounding.
void add_ticks(ScaleAxis& axis, double step) {
  const double first = std::ceil(axis.low / step - 1e-9);
  const double last = std::floor(axis.high / step + 1e-9);
  for (double n = first; n <= last; ++n) {
    axis.ticks.push_back({axis.place(n * step), tick_text(n * step, step)});
  }
}

}  // namespace

double round_up(double x) {
  const double power = std::pow(10.0, std::floor(std::log10(x)));
  for (const double m : {1.0, 2.0, 2.5, 5.0}) {
    // Numbers that are round up to the rounding of the quotient count as round.
    if (m * power >= x * (1 - 1e-9)) return m * power;
  }
  return 10 * power;
}

std::string short_number(double value, int digits) {
  if (value == 0) return "0";
  std::string text = fmt::format("{:.{}g}", value, digits);
  // An exponent without its plus sign and leading zero.
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
  if (high <= low) {  // one number: an axis from 0 to it
    low = std::min(low, 0.0);
    high = std::max(high, low + (low < 0 ? -low : 1.0));
  }
  const double step = round_up((high - low) / most);
  ScaleAxis axis{step * std::floor(low / step + 1e-9), step * std::ceil(high / step - 1e-9), {}};
  add_ticks(axis, step);
  return axis;
}

ScaleAxis running_axis(double high, int most) {
  ScaleAxis axis{0, high > 0 ? high : 1, {}};
  add_ticks(axis, round_up(axis.high / most));
  return axis;
}

}  // namespace qkv::app::picture
