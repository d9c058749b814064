// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_REFERENCE_PATH_H_
#define QKV_ATTENTION_REFERENCE_PATH_H_

#include "attention/implementations.h"

namespace qkv::attn {

// The last implementation: supports every problem, in float32 or float64 sums as the problem says.
// The formulas stand in reference/forward.h and reference/backward.h.
extern const Implementation kReference;
// The same with products of bfloat16 in pairs (core/bfloat16_pairs.h), which the target avx512bf16
// has.
extern const Implementation kPairedReference;

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_REFERENCE_PATH_H_
