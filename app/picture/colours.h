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

// The number of colours of the bar. Finer steps would be invisible, coarser ones visible.
inline constexpr int kLevels = 128;

// The level, 0 to kLevels - 1, of a place on the bar, 0 to 1.
int level_of(double place);

// A bar's colours at its points 0 to kBarSteps; the colours in between are interpolated.
inline constexpr int kBarSteps = 16;
using Bar = std::array<Rgb, kBarSteps + 1>;

// The bar for paper, from light to dark.
const Bar& paper_bar();
// The bar for terminals, from violet through teal to yellow. Both ends are visible on black and on
// white.
const Bar& terminal_bar();

// The colour of a level of the bar, interpolated between two of its points.
Rgb colour_at(const Bar& bar, int level);

// The colour of a level on terminals, from violet (level 0) to yellow.
inline Rgb terminal_colour(int level) { return colour_at(terminal_bar(), level); }
// The colours from violet to yellow in few steps, 0 to kStepsOf256 - 1, for terminals of 256
// colours. Each is a colour of xterm's cube, clearly lighter than the one before.
inline constexpr int kStepsOf256 = 10;
Rgb terminal_step(int step);
// The index of the nearest colour among those of xterm's 256 that are the same on every terminal.
int nearest_of_256(const Rgb& colour);

// The colours of exact zeros: paler (paper) or darker (terminals) than every number, and nearly
// grey.
inline constexpr Rgb kPaperZero{246, 246, 244};
inline constexpr Rgb kTerminalZero{14, 14, 16};
// The colour of non-finite numbers: vermilion, distinguishable from the blues in every common form
// of colour blindness (Okabe and Ito, "Color universal design", 2008).
inline constexpr Rgb kFault{213, 94, 0};

// Whether text on a background should be dark, by the background's relative luminance (WCAG 2.1),
// computed in integers.
bool wants_dark_text(const Rgb& background);

// The colour in CSS notation, such as "#0b97da".
std::string hex(const Rgb& colour);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_COLOURS_H_
