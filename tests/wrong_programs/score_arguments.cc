// SPDX-License-Identifier: Apache-2.0
// error: score_mod: the function must be callable as f(score, qkv::At): [=](auto s, At at)
// lines: 20
#include <qkv/mods.h>

qkv::ScoreMod f() {
  return qkv::score_mod([](auto s, int i, int j) { return s - (i - j); });
}
