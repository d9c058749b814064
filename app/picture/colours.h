// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_COLOURS_H_
#define QKV_PICTURE_COLOURS_H_

#include <array>
#include <cstdint>
#include <string>

namespace qkv::app::picture {

struct Rgb {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;
  friend bool operator==(const Rgb&, const Rgb&) = default;
};

// The number of colours: finer steps are invisible, coarser ones visible.
inline constexpr int kLevels = 128;

// The level of a place on the bar (0 to 1).
int level_of(double place);

// The points of the table behind the colours, 0 to kBarSteps.
inline constexpr int kBarSteps = 16;
using Bar = std::array<Rgb, kBarSteps + 1>;

// Light to dark, for paper.
const Bar& paper_bar();
// Violet through teal to yellow, for terminals: both ends are visible on black and on white.
const Bar& terminal_bar();

// The colour of a level, interpolated between two points of the table.
Rgb colour_at(const Bar& bar, int level);

// Violet (level 0) to yellow.
inline Rgb terminal_colour(int level) { return colour_at(terminal_bar(), level); }
// The same way in few steps for terminals of 256 colours, each clearly lighter than the one before:
// 0 to kStepsOf256 - 1. They are colours of xterm's cube.
inline constexpr int kStepsOf256 = 10;
Rgb terminal_step(int step);
// The nearest of xterm's 256 colours that is the same on every terminal.
int nearest_of_256(const Rgb& colour);

// Exact zeros: paler, or darker, than every number, and without hue.
inline constexpr Rgb kPaperZero{246, 246, 244};
inline constexpr Rgb kTerminalZero{14, 14, 16};
// Not finite: vermilion, distinguishable from the blues in every common form of colour blindness
// (Okabe and Ito, "Color universal design", 2008).
inline constexpr Rgb kFault{213, 94, 0};

// Whether text on this colour should be dark: its relative luminance (WCAG 2.1), in integers.
bool wants_dark_text(const Rgb& background);

// "#0b97da"
std::string hex(const Rgb& colour);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_COLOURS_H_
