// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_REFERENCE_PATH_H_
#define QKV_ATTENTION_REFERENCE_PATH_H_

#include "attention/implementations.h"

namespace qkv::attn {

// The reference implementation: it supports every problem, with float32 or float64 accumulators as
// the problem says. The formulas are in reference/forward.h and reference/backward.h.
extern const Implementation kReference;
// The reference with the products of bfloat16 (core/bfloat16_products.h) that the targets
// avx512bf16 and amx have in hardware.
extern const Implementation kDot2Reference;
extern const Implementation kAmxReference;

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_REFERENCE_PATH_H_
