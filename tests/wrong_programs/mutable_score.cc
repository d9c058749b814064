// SPDX-License-Identifier: Apache-2.0
// error: must not change itself: remove `mutable`
// lines: 14
#include <qkv/mods.h>

qkv::ScoreMod f() {
  return qkv::score_mod([calls = 0](auto s, qkv::At) mutable { return s + ++calls; });
}
