// SPDX-License-Identifier: Apache-2.0
#include "picture/colours.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

namespace qkv::app::picture {
namespace {

// The bar for paper at t = 0, 1/16, ..., 1, as sRGB. In OKLCH (Ottosson, "A perceptual color
// space", 2020) it has lightness 0.95 - 0.70 t, hue 210 + 66 t degrees, chroma 0.020 + 0.105 sin(pi
// t) + 0.045 t. Lightness falls evenly, so the order survives greyscale printing and colour
// blindness. It is a table so that output is byte-identical everywhere.
constexpr Bar kBar{{
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

// The bar for terminals at t = 0, 1/16, ..., 1, as sRGB. In OKLCH it has lightness 0.48 + 0.44 t,
// hue 300 - 190 t degrees, chroma 0.13 + 0.02 t - 0.06 sin(pi t). The low end has a contrast (WCAG
// 2.1) of 3.0 with black, so that small weights stay visible on a dark background; on a white one,
// yellow shows the large weights.
constexpr Bar kTerminalBar{{
    {106, 73, 155},
    {99, 88, 165},
    {93, 102, 172},
    {87, 116, 176},
    {84, 128, 179},
    {82, 140, 181},
    {84, 151, 181},
    {87, 162, 182},
    {92, 173, 182},
    {99, 184, 181},
    {108, 194, 179},
    {119, 204, 174},
    {134, 213, 167},
    {153, 222, 157},
    {177, 229, 143},
    {205, 234, 127},
    {235, 237, 109},
}};

// The bar for terminals with 256 colours. The nearest colours to kTerminalBar's would repeat, and
// some would be grey, so others are chosen: lightness (CIE L*) rises by at least 2.5 at each step,
// from 44 to 97, and neighbours are at least 15 apart (CIE 1976). Lightness leaps by 8 to 10 where
// green steps up, because of the steps of xterm's cube.
constexpr std::array<Rgb, kStepsOf256> kTerminalSteps{{
    {95, 95, 175},
    {95, 95, 215},
    {95, 135, 215},
    {0, 175, 175},
    {135, 175, 135},
    {95, 215, 135},
    {175, 215, 135},
    {135, 255, 135},
    {215, 255, 95},
    {255, 255, 95},
}};

int square(int x) { return x * x; }

int distance(const Rgb& a, const Rgb& b) {
  return square(a.red - b.red) + square(a.green - b.green) + square(a.blue - b.blue);
}

}  // namespace

int level_of(double place) { return std::clamp(static_cast<int>(place * kLevels), 0, kLevels - 1); }

const Bar& paper_bar() { return kBar; }

const Bar& terminal_bar() { return kTerminalBar; }

Rgb terminal_step(int step) { return kTerminalSteps[static_cast<std::size_t>(step)]; }

// Interpolates in integers, with rounding.
Rgb colour_at(const Bar& bar, int level) {
  constexpr int kLast = kLevels - 1;
  const int at = level * kBarSteps;
  const auto& from = bar[static_cast<std::size_t>(at / kLast)];
  const auto& to = bar[static_cast<std::size_t>(std::min(at / kLast + 1, kBarSteps))];
  const auto mix = [&](int a, int b) {
    return static_cast<std::uint8_t>((a * (kLast - at % kLast) + b * (at % kLast) + kLast / 2) /
                                     kLast);
  };
  return {mix(from.red, to.red), mix(from.green, to.green), mix(from.blue, to.blue)};
}

int nearest_of_256(const Rgb& colour) {
  // The first 16 colours are chosen by users; then come a cube of 6 x 6 x 6 and 24 greys (xterm's
  // 256colres.pl).
  constexpr int kCube = 16;
  constexpr int kGreys = 232;
  constexpr std::array<int, 6> kSteps{0, 95, 135, 175, 215, 255};
  const auto step = [&](int c) {
    const auto nearer = [&](int a, int b) { return std::abs(a - c) < std::abs(b - c); };
    return static_cast<int>(std::ranges::min_element(kSteps, nearer) - kSteps.begin());
  };
  const auto byte = [](int c) { return static_cast<std::uint8_t>(c); };
  const int red = step(colour.red);
  const int green = step(colour.green);
  const int blue = step(colour.blue);
  const auto shown = [&](int n) { return byte(kSteps[static_cast<std::size_t>(n)]); };
  const Rgb cube{shown(red), shown(green), shown(blue)};

  const int mean = (colour.red + colour.green + colour.blue) / 3;
  const int grey = std::clamp((mean - 3) / 10, 0, 23);  // 8, 18, ..., 238
  const Rgb level{byte(8 + 10 * grey), byte(8 + 10 * grey), byte(8 + 10 * grey)};
  return distance(level, colour) < distance(cube, colour) ? kGreys + grey
                                                          : kCube + 36 * red + 6 * green + blue;
}

bool wants_dark_text(const Rgb& background) {
  // Squares approximate the standard's power of 2.4. Below about a quarter, white text is more
  // legible.
  return 2126 * square(background.red) + 7152 * square(background.green) +
             722 * square(background.blue) >
         2600 * square(255);
}

std::string hex(const Rgb& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

}  // namespace qkv::app::picture
