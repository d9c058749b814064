// SPDX-License-Identifier: Apache-2.0
// error: call the functions of <qkv/dual.h> unqualified: exp(s), not std::exp(s)
// lines: 20
#include <cmath>

#include <qkv/mods.h>

qkv::ScoreMod f() {
  return qkv::score_mod([](auto s, qkv::At at) { return s * std::exp(-s) + at.i; });
}
