// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_ABOUT_INFO_H_
#define QKV_COMMANDS_ABOUT_INFO_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/shell/console.h"

// `qkv info`: this build, this machine, and which code runs which call.

// A name and its value, in display order.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts build_facts();
Facts machine_facts();

// The implementation that one kind of call takes.
struct PathFact {
  std::string_view score;
  std::string_view options;  // in addition to plain arrays: "causal", "bias", ...
  std::string dtype;         // "float32", or "float32+bfloat16" of q and of k and v
  std::string forward;
  std::string backward;
};
// All scores, all dtypes, all families of options.
std::vector<PathFact> path_facts();

#endif  // QKV_COMMANDS_ABOUT_INFO_H_
