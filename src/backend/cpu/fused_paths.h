// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BACKEND_CPU_FUSED_PATHS_H_
#define QKV_BACKEND_CPU_FUSED_PATHS_H_

#include "backend/cpu/implementations.h"

// Fused attention: tiles for each product of pairs, on each CPU target.
namespace qkv::attn {

extern const Implementation kDotAvx512, kDotAvx2, kDotSse4;
extern const Implementation kAdditiveAvx512, kAdditiveAvx2, kAdditiveSse4;

bool has_pairs(const core::Problem& p) noexcept;

}  // namespace qkv::attn

#endif  // QKV_BACKEND_CPU_FUSED_PATHS_H_
