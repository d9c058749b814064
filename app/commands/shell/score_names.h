// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_SCORE_NAMES_H_
#define QKV_COMMANDS_SHELL_SCORE_NAMES_H_

#include <array>
#include <variant>

#include <qkv/alternatives.h>
#include <qkv/scores.h>

#include "commands/shell/options.h"

// The library's scores by the names that users type. Their parameters are not set.
inline const auto kScores = [] {
  std::array<Choice<qkv::Score>, std::variant_size_v<qkv::Score>> scores;
  std::size_t n = 0;
  qkv::for_each_alternative<qkv::Score>([&]<class S>() { scores[n++] = {S::kName, S{}}; });
  return scores;
}();

// The scores that have parameters, as options: "--score bilinear or --score additive" with the
// separator " or ".
inline std::string learned_scores(std::string_view separator) {
  std::string list;
  for (const Choice<qkv::Score>& score : kScores) {
    if (!qkv::has_parameters(score.value)) continue;
    list += fmt::format("{}--score {}", list.empty() ? "" : separator, score.name);
  }
  return list;
}

// Sets each parameter of a score to get(name), an array, which may be absent.
template <class Get>
void take_parameters(qkv::Score& score, const Get& get) {
  std::visit(
      [&]<class S>(S& one) {
        S::for_each_parameter([&](const char* name, auto value, auto) { one.*value = get(name); });
      },
      score);
}

#endif  // QKV_COMMANDS_SHELL_SCORE_NAMES_H_
