// SPDX-License-Identifier: Apache-2.0
// error: score_mod: the function must return the new score
// lines: 14
#include <qkv/mods.h>

qkv::ScoreMod f() {
  return qkv::score_mod([](auto s, qkv::At at) { return s > at.i; });
}
