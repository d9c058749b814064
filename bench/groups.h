// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_GROUPS_H_
#define QKV_BENCH_GROUPS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session.h"

namespace qkv::bench {

// Whether a group runs by default or only if it is named.
enum class Choice { kByDefault, kWhenNamed };

// A group of rows to measure, with its name and description in the help.
struct Group {
  std::string_view name;
  std::string_view about;
  void (*run)(Session& session);
  Choice choice;
};

// All groups, in the order in which they run.
std::span<const Group> groups();

// The groups of these names, in the order of groups(); without names those that run by default.
// Throws Error for an unknown name, listing the valid ones.
std::vector<Group> chosen_groups(const std::vector<std::string>& names);

// Each function measures the rows of the group of its name.
void run_forward(Session& session);
void run_backward(Session& session);
void run_widths(Session& session);
void run_options(Session& session);
void run_backward_options(Session& session);  // called by run_backward()
void run_custom(Session& session);
void run_sums(Session& session);
void run_values(Session& session);
void run_decode(Session& session);
void run_many(Session& session);
void run_threads(Session& session);
void run_additive(Session& session);
void run_bilinear(Session& session);
void run_dense(Session& session);
void run_small(Session& session);

}  // namespace qkv::bench

#endif  // QKV_BENCH_GROUPS_H_
