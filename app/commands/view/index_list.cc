// SPDX-License-Identifier: Apache-2.0
#include "commands/view/index_list.h"

#include <numeric>
#include <optional>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "commands/shell/exit_codes.h"
#include "text/numbers.h"

namespace {

using qkv::Index;

std::optional<Index> parse_index(std::string_view text) {
  const auto number = qkv::app::parse_number<Index>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

// Parses one part of a list, such as "3" or "2-5"; empty if it is malformed.
std::optional<IndexList::Range> parse_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_index(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_index(text.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return IndexList::Range{*first, *last};
}

std::optional<IndexList> parse_list(std::string_view text) {
  IndexList list;
  list.all = text == "all";
  while (!list.all) {
    const std::size_t comma = text.find(',');
    const auto range = parse_range(text.substr(0, comma));
    if (!range) return std::nullopt;
    list.ranges.push_back(*range);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return list;
}

}  // namespace

Option add_indices(const Command& command, const std::string& name, IndexList& target,
                   const std::string& help) {
  return command
      .add_parsed(
          name,
          [&target, name](const std::string& text) {
            const auto list = parse_list(text);
            if (!list) {
              throw BadValue(
                  name, fmt::format("expected all, or ranges counted from 0 such as 0,2-3, got {}",
                                    qkv::app::quoted(text)));
            }
            target = *list;
          },
          help)
      .type_name("LIST");
}

std::vector<Index> resolve(const IndexList& list, std::string_view option, std::string_view axis,
                           Index size) {
  std::vector<Index> indices;
  if (list.all || !list.given()) {
    indices.resize(static_cast<std::size_t>(size));
    std::iota(indices.begin(), indices.end(), Index{0});
    return indices;
  }
  std::vector<char> seen(static_cast<std::size_t>(size));
  for (const IndexList::Range& range : list.ranges) {
    if (range.last >= size) {
      throw UsageError(size == 1
                           ? fmt::format("{} {}: {} has only index 0", option, range.last, axis)
                           : fmt::format("{} {}: {} are 0-{}", option, range.last, axis, size - 1));
    }
    for (Index index = range.first; index <= range.last; ++index) {
      char& before = seen[static_cast<std::size_t>(index)];
      if (before != 0) throw UsageError(fmt::format("{} names {} twice", option, index));
      before = 1;
      indices.push_back(index);
    }
  }
  return indices;
}

std::string ranges_of(const std::vector<Index>& indices) {
  std::string text;
  for (std::size_t n = 0; n < indices.size();) {
    std::size_t end = n + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", indices[n]);
    if (end > n + 1) text += fmt::format("-{}", indices[end - 1]);
    n = end;
  }
  return text;
}
