// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_REFERENCE_PATH_H_
#define QKV_ATTENTION_REFERENCE_PATH_H_

#include "attention/implementations.h"

namespace qkv::attn {

// The reference implementation: it supports every problem, with float32 or float64 accumulators as
// the problem says. The formulas are in reference/forward.h and reference/backward.h.
extern const Implementation kReference;
// The reference with BF16 two-way dot products (core/bfloat16_dot2.h), which the target avx512bf16
// has in hardware.
extern const Implementation kDot2Reference;

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_REFERENCE_PATH_H_
