// SPDX-License-Identifier: Apache-2.0
// error: mask_mod: the function must return a bool: whether query at.i may attend to key at.j
// lines: 14
#include <qkv/mods.h>

qkv::MaskMod f() {
  return qkv::mask_mod([](qkv::At at) { return at.j <= at.i ? 0.0F : -1e9F; });
}
