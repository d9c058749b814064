// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_ATTENTION_PROJECTED_PATH_H_
#define QKV_ATTENTION_PROJECTED_PATH_H_

#include <optional>

#include "attention/implementations.h"
#include "kernels/target.h"

// Fused attention of scores that project queries, or queries and keys, for each CPU target.
namespace qkv::door {

extern const Implementation kAdditiveAvx512, kAdditiveAvx2, kAdditiveSse4;
extern const Implementation kBilinearAvx512, kBilinearAvx2, kBilinearSse4;

bool has_pairs(const core::Problem& p) noexcept;

// The CPU target of an additive one; nothing for all others.
std::optional<kernels::Target> target_of(const Implementation& one) noexcept;

}  // namespace qkv::door

#endif  // QKV_ATTENTION_PROJECTED_PATH_H_
