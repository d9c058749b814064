// SPDX-License-Identifier: Apache-2.0
#include "picture/colours.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

// The bar at t = 0, 1/16, ..., 1: in OKLCH (Ottosson, "A perceptual color space", 2020) lightness
// 0.95 - 0.70 t, hue 210 + 66 t degrees, chroma 0.020 + 0.105 sin(pi t) + 0.045 t, as sRGB.
// Lightness falls evenly, so grey prints and colour-blind eyes keep the order. A table, for the
// same bytes wherever it is used.
constexpr std::array<Rgb, kBarSteps + 1> kBar{{
    {224, 242, 246},
    {192, 232, 242},
    {161, 221, 239},
    {130, 209, 236},
    {99, 196, 234},
    {70, 181, 230},
    {42, 167, 225},
    {11, 151, 218},
    {0, 135, 208},
    {0, 120, 196},
    {12, 104, 182},
    {24, 89, 166},
    {31, 75, 147},
    {33, 62, 127},
    {33, 50, 106},
    {30, 39, 85},
    {26, 29, 64},
}};

}  // namespace

int level_of(double place) { return std::clamp(static_cast<int>(place * kLevels), 0, kLevels - 1); }

Rgb paper_colour(int level) {
  // Between two points of the table in whole numbers, rounded.
  constexpr int kLast = kLevels - 1;
  const int at = level * kBarSteps;
  const auto& from = kBar[static_cast<std::size_t>(at / kLast)];
  const auto& to = kBar[static_cast<std::size_t>(std::min(at / kLast + 1, kBarSteps))];
  const auto mix = [&](int a, int b) {
    return static_cast<std::uint8_t>((a * (kLast - at % kLast) + b * (at % kLast) + kLast / 2) /
                                     kLast);
  };
  return {mix(from.red, to.red), mix(from.green, to.green), mix(from.blue, to.blue)};
}

Rgb bar_point(int n) { return kBar[static_cast<std::size_t>(n)]; }

Rgb terminal_colour(int level) { return paper_colour(kLevels - 1 - level); }

bool wants_dark_text(const Rgb& background) {
  // Squares come near the standard's power of 2.4; below a quarter white is the plainer text.
  const auto square = [](int c) { return c * c; };
  return 2126 * square(background.red) + 7152 * square(background.green) +
             722 * square(background.blue) >
         2600 * square(255);
}

std::string hex(const Rgb& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

}  // namespace qkv::app::picture
