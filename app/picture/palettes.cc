// SPDX-License-Identifier: Apache-2.0
#include "picture/palettes.h"

namespace qkv::app::picture {
namespace {

// Viridis (Van der Walt and Smith, 2015). All tables in this file are at t = 0, 1/16, ..., 1.
constexpr Bar kViridis{{
    {68, 1, 84},
    {72, 24, 106},
    {71, 45, 123},
    {66, 64, 134},
    {59, 82, 139},
    {51, 99, 141},
    {44, 114, 142},
    {38, 130, 142},
    {33, 145, 140},
    {31, 160, 136},
    {40, 174, 128},
    {63, 188, 115},
    {94, 201, 98},
    {132, 212, 75},
    {173, 220, 48},
    {216, 226, 25},
    {253, 231, 37},
}};

// Cividis (Nunez, Anderton and Renslow, "Optimizing colormaps with consideration for color vision
// deficiency", 2018), which looks nearly the same with and without colour blindness.
constexpr Bar kCividis{{
    {0, 34, 78},
    {0, 46, 106},
    {26, 56, 111},
    {50, 67, 109},
    {67, 78, 108},
    {83, 90, 109},
    {97, 101, 111},
    {111, 112, 115},
    {125, 124, 120},
    {140, 136, 120},
    {155, 148, 118},
    {171, 160, 114},
    {188, 174, 108},
    {205, 187, 99},
    {222, 201, 88},
    {240, 216, 70},
    {254, 232, 56},
}};

// Greys for paper, whose OKLCH lightness falls from 0.92 to 0.12, and greys for terminals, whose
// lightness rises from 0.42 to 0.95.
constexpr Bar kGrey{{
    {228, 228, 228},
    {212, 212, 212},
    {196, 196, 196},
    {180, 180, 180},
    {164, 164, 164},
    {149, 149, 149},
    {134, 134, 134},
    {119, 119, 119},
    {105, 105, 105},
    {91, 91, 91},
    {77, 77, 77},
    {64, 64, 64},
    {51, 51, 51},
    {38, 38, 38},
    {27, 27, 27},
    {15, 15, 15},
    {6, 6, 6},
}};
constexpr Bar kTerminalGrey{{
    {77, 77, 77},
    {86, 86, 86},
    {95, 95, 95},
    {105, 105, 105},
    {114, 114, 114},
    {124, 124, 124},
    {134, 134, 134},
    {144, 144, 144},
    {154, 154, 154},
    {164, 164, 164},
    {174, 174, 174},
    {185, 185, 185},
    {195, 195, 195},
    {206, 206, 206},
    {216, 216, 216},
    {227, 227, 227},
    {238, 238, 238},
}};

// RdBu of ColorBrewer (Harrower and Brewer, 2003), reversed, so that blue is negative. Red and blue
// differ in the common forms of colour blindness, too.
constexpr Bar kRedBlue{{
    {5, 48, 97},
    {23, 82, 144},
    {42, 113, 178},
    {63, 142, 192},
    {107, 172, 209},
    {155, 201, 224},
    {194, 221, 236},
    {224, 236, 243},
    {247, 246, 246},
    {251, 229, 216},
    {251, 204, 180},
    {245, 170, 137},
    {228, 128, 102},
    {208, 85, 72},
    {186, 40, 50},
    {147, 14, 38},
    {103, 0, 31},
}};
// Red and blue for terminals, where the middle is dark: OKLCH lightness 0.34 + 0.48 |x|, chroma
// 0.15 |x|^0.8, hue 250 degrees for x < 0, else 35, at x from -1 to 1; clipped to sRGB at the ends.
constexpr Bar kTerminalRedBlue{{
    {114, 202, 255},
    {106, 182, 255},
    {97, 163, 230},
    {89, 144, 200},
    {81, 126, 172},
    {74, 108, 143},
    {67, 90, 115},
    {60, 73, 87},
    {56, 56, 56},
    {86, 66, 61},
    {113, 78, 69},
    {140, 90, 78},
    {167, 103, 87},
    {194, 116, 97},
    {222, 130, 107},
    {250, 144, 117},
    {255, 158, 128},
}};

constexpr Rgb kPaperWhite{255, 255, 255};

}  // namespace

Palette palette_of(Colours colours) {
  switch (colours) {
    case Colours::kBlue:
      return {paper_bar(), terminal_bar(), kPaperZero, kTerminalZero};
    case Colours::kGrey:
      return {kGrey, kTerminalGrey, kPaperWhite, kTerminalZero};
    case Colours::kViridis:
      return {kViridis, kViridis, kTerminalZero, kTerminalZero};
    case Colours::kCividis:
      return {kCividis, kCividis, kTerminalZero, kTerminalZero};
    case Colours::kRedBlue:
      break;
  }
  // Here 0 is a number like the others, with the colour of the middle.
  return {kRedBlue, kTerminalRedBlue, kRedBlue[kBarSteps / 2], kTerminalRedBlue[kBarSteps / 2],
          true};
}

}  // namespace qkv::app::picture
