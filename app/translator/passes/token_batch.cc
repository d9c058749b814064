// SPDX-License-Identifier: Apache-2.0
#include "translator/passes/token_batch.h"

#include <algorithm>

#include <fmt/format.h>

#include <qkv/app/vocabulary.h>
#include <qkv/error.h>

namespace qkv::app {

TokenBatch token_batch(std::string_view function, std::string_view argument,
                       std::span<const TokenList> lists, Index tokens) {
  TokenBatch batch;
  batch.count = static_cast<Index>(lists.size());
  for (std::size_t n = 0; n < lists.size(); ++n) {
    if (lists[n].empty()) {
      throw Error(function, argument, fmt::format("must have tokens, but [{}] is empty", n));
    }
    for (std::size_t t = 0; t < lists[n].size(); ++t) {
      const std::int32_t id = lists[n][t];
      if (id > Vocabulary::kPadding && id < tokens) continue;
      throw Error(function, argument,
                  fmt::format("must have tokens in {}..{}, got {} at [{}][{}]",
                              Vocabulary::kPadding + 1, tokens - 1, id, n, t));
    }
    batch.longest = std::max(batch.longest, static_cast<Index>(lists[n].size()));
  }
  batch.ids.assign(static_cast<std::size_t>(batch.count * batch.longest), Vocabulary::kPadding);
  for (std::size_t n = 0; n < lists.size(); ++n) {
    std::copy(lists[n].begin(), lists[n].end(),
              batch.ids.begin() + static_cast<std::ptrdiff_t>(n) * batch.longest);
    batch.lengths.push_back(static_cast<std::int32_t>(lists[n].size()));
  }
  return batch;
}

}  // namespace qkv::app
