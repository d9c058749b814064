// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_PALETTES_H_
#define QKV_PICTURE_PALETTES_H_

#include <qkv/app/picture.h>

#include "picture/colours.h"

namespace qkv::app::picture {

// The colours of numbers and of exact zeros, on paper and on terminals. All palettes but red-blue
// have a low end that is dark on terminals, and light on paper except in viridis and cividis.
struct Palette {
  const Bar& paper;
  const Bar& terminal;
  Rgb paper_zero{};
  Rgb terminal_zero{};
  bool centred = false;  // whether 0 is the middle of the bar, with negative numbers below it
};

Palette palette_of(Colours colours);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_PALETTES_H_
