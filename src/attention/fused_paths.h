// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_PATHS_H_
#define QKV_ATTENTION_FUSED_PATHS_H_

#include "attention/implementations.h"

// Fused attention: tiles for each product of pairs, on each CPU target.
namespace qkv::door {

extern const Implementation kDotAvx512, kDotAvx2, kDotSse4;
extern const Implementation kAdditiveAvx512, kAdditiveAvx2, kAdditiveSse4;

bool has_pairs(const core::Problem& p) noexcept;

}  // namespace qkv::door

#endif  // QKV_ATTENTION_FUSED_PATHS_H_
