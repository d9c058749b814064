// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_FUSED_PATHS_H_
#define QKV_ATTENTION_FUSED_PATHS_H_

#include <array>

#include "attention/implementations.h"

// The fused implementations: one for each pair product (kDot, kTanh) and CPU target.
namespace qkv::attn {

// Ordered by product (dot, additive), within each by target, best first.
extern const std::array<Implementation, 2 * kernels::kTargets.size()> kFused;

// Whether the problem has queries and keys. Only then can input transforms run on tiles.
bool runs_on_tiles(const core::Problem& p) noexcept;

}  // namespace qkv::attn

#endif  // QKV_ATTENTION_FUSED_PATHS_H_
