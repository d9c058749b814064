// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_SCORE_NAMES_H_
#define QKV_TOOLS_SCORE_NAMES_H_

#include "options.h"

// The scores by the names that users type.
enum class ScoreName { kDot, kScaledDot, kBilinear, kAdditive };
inline constexpr Choice<ScoreName> kScores[] = {{"dot", ScoreName::kDot},
                                                {"scaled_dot", ScoreName::kScaledDot},
                                                {"bilinear", ScoreName::kBilinear},
                                                {"additive", ScoreName::kAdditive}};

constexpr std::string_view name_of(ScoreName score) {
  return kScores[static_cast<std::size_t>(score)].name;
}

#endif  // QKV_TOOLS_SCORE_NAMES_H_
