// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_VIEW_INDEX_LIST_H_
#define QKV_COMMANDS_VIEW_INDEX_LIST_H_

#include <string>
#include <string_view>
#include <vector>

#include <qkv/view.h>

#include "commands/shell/command.h"

// "0,2-3" as typed: indices from 0, inclusive ranges; "all".
struct IndexList {
  struct Range {
    qkv::Index first;
    qkv::Index last;
  };
  std::vector<Range> ranges{};
  bool all = false;

  bool given() const { return all || !ranges.empty(); }
};

// An option that takes such a list; a malformed one is an error.
Option add_indices(const Command& command, const std::string& name, IndexList& target,
                   const std::string& help);

// The indices of an axis of `size` ("heads") in the order given; all if no list is given.
// Throws a UsageError that names `option` and the valid range, also for an index named twice.
std::vector<qkv::Index> resolve(const IndexList& list, std::string_view option,
                                std::string_view axis, qkv::Index size);

// "0-3, 7", the shortest form of a list.
std::string ranges_of(const std::vector<qkv::Index>& indices);

#endif  // QKV_COMMANDS_VIEW_INDEX_LIST_H_
