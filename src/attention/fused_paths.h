// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_PATHS_H_
#define QKV_ATTENTION_FUSED_PATHS_H_

#include <array>

#include "attention/implementations.h"

// Fused attention: tiles for each product of pairs, on each CPU target.
namespace qkv::attn {

// Of each product, the targets best first.
extern const std::array<Implementation, 2 * kernels::kTargets.size()> kFused;

bool has_pairs(const core::Problem& p) noexcept;

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_PATHS_H_
