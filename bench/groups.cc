// SPDX-License-Identifier: Apache-2.0
#include "groups.h"

#include <algorithm>

#include <fmt/format.h>

#include <qkv/error.h>

namespace qkv::bench {
namespace {

constexpr Group kGroups[] = {
    {"forward", "plain and causal calls, by length and width", run_forward, Choice::kByDefault},
    {"backward",
     "gradients, by length and width, and the cost of options relative to plain gradients",
     run_backward, Choice::kByDefault},
    {"widths", "every width from 1 to 256", run_widths, Choice::kWhenNamed},
    {"options", "the cost of each option relative to the plain call", run_options,
     Choice::kByDefault},
    {"custom", "the cost of a custom score or mask relative to the plain call", run_custom,
     Choice::kByDefault},
    {"sums", "entropy and sums of weights besides out, relative to the plain call", run_sums,
     Choice::kByDefault},
    {"values", "scores far apart, relative to the same call with scores close together", run_values,
     Choice::kByDefault},
    {"decode", "one query over many keys, relative to a plain read of them", run_decode,
     Choice::kByDefault},
    {"many", "many small heads, forward and backward", run_many, Choice::kByDefault},
    {"threads", "one head on all threads", run_threads, Choice::kByDefault},
    {"additive", "additive scores, forward and backward, by shape", run_additive,
     Choice::kByDefault},
    {"bilinear", "bilinear scores relative to the plain call", run_bilinear, Choice::kByDefault},
    {"dense", "products of layers and GRUs, forward and backward, by shape", run_dense,
     Choice::kByDefault},
    {"small", "the overhead of the smallest call", run_small, Choice::kByDefault},
};

std::string valid_names() {
  std::string names;
  for (const Group& group : kGroups) names += (names.empty() ? "" : ", ") + std::string(group.name);
  return names;
}

}  // namespace

std::span<const Group> groups() { return kGroups; }

std::vector<Group> chosen_groups(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::find(kGroups, name, &Group::name) == std::end(kGroups)) {
      throw Error("bench", "group",
                  fmt::format("\"{}\" is unknown; valid: {}", name, valid_names()));
    }
  }
  std::vector<Group> chosen;
  for (const Group& group : kGroups) {
    const bool named = std::ranges::find(names, group.name) != names.end();
    if (names.empty() ? group.choice == Choice::kByDefault : named) chosen.push_back(group);
  }
  return chosen;
}

}  // namespace qkv::bench
