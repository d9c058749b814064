// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_TOKEN_BATCH_H_
#define QKV_TRANSLATOR_PASSES_TOKEN_BATCH_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <qkv/app/translator.h>

namespace qkv::app {

// Token lists of sources or of targets, padded to the longest.
struct TokenBatch {
  Index count = 0;
  Index longest = 0;
  std::vector<std::int32_t> ids;  // [count,longest], each list padded with Vocabulary::kPadding
  std::vector<std::int32_t> lengths;

  ConstView view() const { return {ids.data(), Dims{count, longest}}; }
};

using TokenList = std::span<const std::int32_t>;

// Pads the lists to a batch. Throws Error naming `function` and `argument` for an empty list, and
// for ids that are padding or not in [0, tokens).
TokenBatch token_batch(std::string_view function, std::string_view argument,
                       std::span<const TokenList> lists, Index tokens);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_TOKEN_BATCH_H_
