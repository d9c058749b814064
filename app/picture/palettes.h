// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PICTURE_PALETTES_H_
#define QKV_PICTURE_PALETTES_H_

#include <qkv/app/picture.h>

#include "picture/colours.h"

namespace qkv::app::picture {

// The colours of numbers and of exact zeros, on paper and on terminals. The low end of a sequence
// is on paper as its inventors have it; on terminals it is dark.
struct Palette {
  const Bar& paper;
  const Bar& terminal;
  Rgb paper_zero{};
  Rgb terminal_zero{};
  bool centred = false;  // 0 is in the middle, negative numbers are below it
};

Palette palette_of(Colours colours);

}  // namespace qkv::app::picture

#endif  // QKV_PICTURE_PALETTES_H_
