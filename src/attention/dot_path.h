// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_DOT_PATH_H_
#define QKV_ATTENTION_DOT_PATH_H_

#include "attention/implementations.h"

namespace qkv::door {

// Dot-product scores in fused tiles, one implementation for each CPU target: attention/
// fused_forward.h.
extern const Implementation kDotAvx512;
extern const Implementation kDotAvx2;
extern const Implementation kDotSse4;

}  // namespace qkv::door

#endif  // QKV_ATTENTION_DOT_PATH_H_
