// SPDX-License-Identifier: Apache-2.0
// error: score_mod: write the score as `auto s`, since its derivative comes from
// lines: 20
#include <qkv/mods.h>

qkv::ScoreMod f() {
  return qkv::score_mod([](float s, qkv::At at) { return s - at.i; });
}
