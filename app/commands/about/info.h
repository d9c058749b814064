// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_INFO_H_
#define QKV_COMMANDS_ABOUT_INFO_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/shell/console.h"

// The facts of `qkv info`: about this build, this machine, and which code runs which call.

// Pairs of a name and its value, in display order.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts build_facts();
Facts machine_facts();

// The paths that the library chooses for calls of one score, family of options and dtype.
struct PathFact {
  std::string_view score;
  std::string_view options;  // the family of options, such as "causal", or "plain"
  std::string dtype;         // "float32", or "float32+bfloat16" for float32 q, bfloat16 k and v
  std::string forward;
  std::string backward;
};
// The facts of all combinations of scores, families of options, and dtypes. The dtype varies
// fastest, the score slowest.
std::vector<PathFact> path_facts();

#endif  // QKV_COMMANDS_ABOUT_INFO_H_
