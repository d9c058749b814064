// SPDX-License-Identifier: Apache-2.0
// error: must not change itself: remove `mutable`
// lines: 14
#include <qkv/mods.h>

qkv::MaskMod f() {
  return qkv::mask_mod([calls = 0](qkv::At at) mutable { return ++calls > at.i; });
}
