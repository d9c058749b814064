// SPDX-License-Identifier: Apache-2.0
#include "translator/training/kept_checkpoints.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "text/numbers.h"

namespace qkv::app {
namespace {

constexpr std::string_view kStart = "checkpoint-";
constexpr std::string_view kExtension = ".safetensors";

// The update numbers in those of the names that are checkpoints' names, ascending.
std::vector<Index> updates_of(const std::vector<std::string>& names) {
  std::vector<Index> updates;
  for (const std::string& name : names) {
    if (const auto update = checkpoint_update(name)) updates.push_back(*update);
  }
  std::ranges::sort(updates);
  return updates;
}

}  // namespace

std::string checkpoint_name(Index update) {
  return fmt::format("{}{}{}", kStart, update, kExtension);
}

std::optional<Index> checkpoint_update(std::string_view name) {
  if (!name.starts_with(kStart) || !name.ends_with(kExtension)) return std::nullopt;
  name.remove_prefix(kStart.size());
  name.remove_suffix(kExtension.size());
  const auto update = parse_number<Index>(name);
  if (!update || *update < 0 || fmt::to_string(*update) != name) return std::nullopt;
  return update;
}

std::vector<std::string> checkpoint_paths(const std::string& folder) {
  const char* separator = folder.ends_with('/') ? "" : "/";
  std::vector<std::string> paths;
  for (const Index update : updates_of(names_in(folder))) {
    paths.push_back(folder + separator + checkpoint_name(update));
  }
  return paths;
}

void keep_last_checkpoints(const LockedFolder& folder, Index most) {
  const std::vector<Index> updates = updates_of(folder.names());
  for (Index n = 0; n < std::ssize(updates) - most; ++n) {
    folder.remove(checkpoint_name(updates[static_cast<std::size_t>(n)]));
  }
}

void remove_checkpoints_after(const LockedFolder& folder, Index update) {
  for (const std::string& name : folder.names()) {
    // "checkpoint-1500.safetensors.4711-3.tmp" is a temporary file of
    // "checkpoint-1500.safetensors".
    const std::size_t end = name.find(kExtension);
    if (end == name.npos) continue;
    const std::string whole = name.substr(0, end + kExtension.size());
    if (name != whole && checkpoint_update(whole)) folder.remove_leftovers(whole);
  }
  for (const Index number : updates_of(folder.names())) {
    if (number > update) folder.remove(checkpoint_name(number));
  }
}

}  // namespace qkv::app
