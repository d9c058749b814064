// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_INDEX_LIST_H_
#define QKV_COMMANDS_VIEW_INDEX_LIST_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/view.h>

#include "commands/shell/command.h"

// A list of indices as typed: "all", or ranges such as "0,2-3". Indices count from 0, and ranges
// include both ends.
struct IndexList {
  struct Range {
    qkv::Index first;
    qkv::Index last;
  };
  std::vector<Range> ranges{};
  bool all = false;

  bool given() const { return all || !ranges.empty(); }
};

// Adds an option that takes a list of indices; a malformed list is an error.
Option add_indices(const Command& command, const std::string& name, IndexList& target,
                   const std::string& help);

// The indices that a list selects of an axis of `size`, in the order given; all of them if no list
// is given. `axis` is the axis's name in messages, such as "heads". Throws a UsageError that names
// `option` if an index is too large or named twice.
std::vector<qkv::Index> resolve(const IndexList& list, std::string_view option,
                                std::string_view axis, qkv::Index size);

// Indices in the shortest form, with runs of ascending ones as ranges: "0-3, 7".
std::string ranges_of(const std::vector<qkv::Index>& indices);

#endif  // QKV_COMMANDS_VIEW_INDEX_LIST_H_
