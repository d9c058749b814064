// SPDX-License-Identifier: Apache-2.0
// error: mask_mod: the function must be callable as f(qkv::At): [=](At at)
// lines: 20
#include <qkv/mods.h>

qkv::MaskMod f() {
  return qkv::mask_mod([](int i, int j) { return j <= i; });
}
